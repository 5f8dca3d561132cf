package config

import (
	"os"
	"strings"
	"testing"
)

// TestUnknownVariables: each field has a variable, and what is near to none of them is warned of, without its value.
func TestUnknownVariables(t *testing.T) {
	c, _, err := Parse("weir.yaml", []byte("connections: [{id: c, provider: openai, api_key_env: WEIR_MY_KEY}]\nexports: [{name: e, type: cloudevents-http, url: \"https://example.com\", secret_env: WEIR_MY_TOKEN}]\n"),
		vars{"WEIR_MY_KEY": "x", "WEIR_MY_TOKEN": "x"}.get)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile("../../schemas/config/weir.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"PATH=/", "WEIR_MY_KEY=a", "WEIR_MY_TOKEN=a", "WEIR_SEAL_KEYS=a", "WEIR_ROLES=a", "WEIR_ADMIN_KEYS=a", "WEIR_LOG_SYNC=1s", "WEIR_TRACING_SAMPLE=1",
		"WEIR_LIMITS_PLATFORM_SHADOW_RPM=1", "WEIR_LIMITS_DEFAULTS_KEY_SPEND_MONTH=1", "WEIR_NATS_USER=a", "WEIR_SERVICE_HOST=a", "WEIR_PORT=tcp://a", "WEIR_LOG_SERVICE_PORT_NATS=1",
		"WEIR_LOG_PORT_4222_TCP_ADDR=a"}
	for _, line := range known[5:10] { // our own examples are of fields that there are
		for _, part := range strings.Split(strings.ToLower(strings.TrimPrefix(strings.Split(line, "=")[0], "WEIR_")), "_") {
			if !strings.Contains(string(schema), part) {
				t.Errorf("%s: the schema has no %s", line, part)
			}
		}
	}
	got := c.UnknownVariables(append(known, "WEIR_LOG_UR=secret", "WEIR_LISTENN=secret", "WEIR_SOMETHING=secret", "OTHER_LOG_UR=x"), "WEIR_ROLES")
	want := []string{
		"environment: WEIR_LISTENN: there is no such variable: did you mean WEIR_LISTEN?",
		"environment: WEIR_LOG_UR: there is no such variable: did you mean WEIR_LOG_URL?",
		"environment: WEIR_SOMETHING: there is no such variable",
	}
	if len(got) != len(want) {
		t.Fatalf("%d warnings: %v", len(got), got)
	}
	for i := range want {
		if got[i].String() != want[i] {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
}
