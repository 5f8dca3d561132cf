// Package debian installs what tests need and the machine lacks, where it is Debian and they run as root.
package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// within bounds an installation.
const within = 5 * time.Minute

// Install installs packages with what they need.
func Install(packages ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("it takes root to install it here")
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
