// Command weir is the product: the gateway, the projector, the auditor and the broker, in one process or several, and the tools to run them.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// version is set when a release is built.
var version = "dev"

// cli is the command line.
type cli struct {
	Config  string           `short:"c" type:"path" help:"Configuration file; weir.yaml if there is one." env:"WEIR_CONFIG"`
	Version kong.VersionFlag `help:"Print the version."`

	Demo        demoCommand        `cmd:"" help:"Run everything in one process, with a model that answers, and print requests to try."`
	Serve       serveCommand       `cmd:"" help:"Serve."`
	Check       checkCommand       `cmd:"" help:"Validate configuration, keys and policies, and say what is wrong where."`
	Status      statusCommand      `cmd:"" help:"Ask a running process for its roles, lag, the log's end and every gateway's lease."`
	Keygen      keygenCommand      `cmd:"" help:"Make an inference key and its entry for auth.yaml."`
	Credentials credentialsCommand `cmd:"" help:"Say which other processes may join the log."`
	Callout     calloutCommand     `cmd:"" help:"Answer for a NATS cluster who may join it."`
	User        userCommand        `cmd:"" help:"Make somebody who may sign in at the console."`
	Bench       benchCommand       `cmd:"" help:"Send load to a gateway and measure it, or measure what Weir adds on this machine."`
	Tail        tailCommand        `cmd:"" help:"Follow the log."`
	Explain     explainCommand     `cmd:"" help:"Retell what was decided about a request, and why."`
	Simulate    simulateCommand    `cmd:"" help:"Fold recorded traffic under other limits or more load."`
	Verify      verifyCommand      `cmd:"" help:"Prove that log, audit and billing agree to the token and the nano-dollar."`
	Audit       auditCommand       `cmd:"" help:"Look after the audit records in the database: list, rebuild, drop."`
	Exports     exportsCommand     `cmd:"" help:"Look after what exports could not hand on: list, send again."`
	Recover     recoverCommand     `cmd:"" help:"Go on after the log was replaced, lost or cut, or after its clock was wrong."`
	Authority   authorityCommand   `cmd:"" help:"Look after what is made through the API."`
	Seal        sealCommand        `cmd:"" help:"Look after the keys that provider credentials are sealed with."`
	Migrate     migrateCommand     `cmd:"" help:"Bring the database's schema to the version that this binary needs."`
	Replay      replayCommand      `cmd:"" help:"Fold a recorded log and print every verdict."`
}

// ownVariables are those of the command line.
func ownVariables() (names []string) {
	parser, err := kong.New(&cli{}, kong.Vars{"version": version})
	if err != nil {
		return nil // run says so
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		for _, f := range n.Flags {
			names = append(names, f.Envs...)
		}
		for _, c := range n.Children {
			walk(c)
		}
	}
	walk(parser.Model.Node)
	return names
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its edges as arguments. It gives the exit code: 0, 1 for a failure, 2 for a wrong command line.
func run(args []string, stdout, stderr io.Writer) int {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("weir"),
		kong.Description("Admission and accounting for LLM gateways, as one ordered log."),
		kong.UsageOnError(),
		kong.Writers(stdout, stderr),
		kong.BindTo(stdout, (*io.Writer)(nil)),
		kong.Vars{"version": version},
	)
	if err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 2
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 2
	}
	if err := ctx.Run(&c); err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 1
	}
	return 0
}
