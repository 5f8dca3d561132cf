// Package browsertest gives tests a real browser: headless Chromium, one for a test binary, with a profile of its own for each tab.
//
// It uses the binary that CHROMIUM names, else one that it finds on the machine; where there is none it installs the distribution's package
// if it may, and else fails and says what to do. A tab notes everything that the page's console, its policy or a script complained of.
package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/weirhq/weir/test/debian"
)

// Bounds of waiting.
const (
	startWithin = time.Minute
	stepWithin  = time.Minute
	lookEvery   = 20 * time.Millisecond
)

// Screenshots is the variable that names the folder in which screenshots are kept. Without it none are taken.
const Screenshots = "WEIR_SCREENSHOTS"

// browser is started once for a test binary.
var browser struct {
	once sync.Once
	ctx  context.Context
	err  error
	stop func()
}

// Main runs the tests of a package and stops the browser that they started. It is what TestMain calls.
func Main(m *testing.M) int {
	code := m.Run()
	if browser.stop != nil {
		browser.stop()
	}
	return code
}

// Tab is a page with cookies of its own.
type Tab struct {
	tb  testing.TB
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// Look says how a tab shows pages.
type Look struct {
	Width, Height int64 // in CSS pixels. Default to 1280 × 900; below 500 it is a phone
	Dark          bool
	NoScript      bool
}

// Phone is as narrow as phones are.
var Phone = Look{Width: 360, Height: 740}

// New opens a tab, which is closed with the test. It fails the test if there is no browser.
func New(tb testing.TB, look Look) *Tab {
	tb.Helper()
	browser.once.Do(start)
	if browser.err != nil {
		tb.Fatal(browser.err)
	}
	t := &Tab{tb: tb}
	ctx, cancel := chromedp.NewContext(browser.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(t.listen))
	tb.Cleanup(cancel)
	t.ctx = ctx
	if look.Width == 0 {
		look.Width, look.Height = 1280, 900
	}
	scheme := "light"
	if look.Dark {
		scheme = "dark"
	}
	if err := chromedp.Do(ctx); err != nil {
		tb.Fatalf("open a tab: %v", err)
	}
	_, err := chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: look.Width, Height: look.Height, DeviceScaleFactor: 1, Mobile: look.Width < 500})
	_, dark := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	_, script := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: look.NoScript})
	if err := errors.Join(err, dark, script); err != nil {
		tb.Fatalf("open a tab: %v", err)
	}
	return t
}

// listen notes complaints.
func (t *Tab) listen(event any) {
	text := ""
	switch e := event.(type) {
	case *cdplog.EventEntryAdded:
		if e.Entry.Source == cdplog.EntrySourceNetwork { // an answer of 400 and more is no fault of the page
			return
		}
		text = fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *runtime.EventExceptionThrown:
		text = "script: " + e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
	case *runtime.EventConsoleAPICalled:
		if string(e.Type) != "error" && string(e.Type) != "warning" {
			return
		}
		text = "console:"
		for _, a := range e.Args {
			text += " " + string(a.Value)
		}
	default:
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complaints = append(t.complaints, text)
}

// Complaints are what the browser complained of since the last call.
func (t *Tab) Complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.complaints
	t.complaints = nil
	return all
}

// do does a step in bounded time, or fails the test with what the page shows.
func do[T any](t *Tab, what string, step chromedp.Action[T]) T {
	t.tb.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, stepWithin)
	defer cancel()
	v, err := chromedp.Run(ctx, step)
	if err != nil {
		t.tb.Fatalf("%s: %v; the page shows:\n%s", what, err, t.shown())
	}
	return v
}

// shown is where the tab is, and the page's text.
func (t *Tab) shown() string {
	ctx, cancel := context.WithTimeout(t.ctx, time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText")) // for a message alone
	return text
}

// Cookie gives the tab a cookie of a site.
func (t *Tab) Cookie(url, name, value string) {
	t.tb.Helper()
	if _, err := chromedp.Call(t.ctx, network.SetCookie, network.SetCookieParams{Name: name, Value: value, URL: url, HTTPOnly: new(true)}); err != nil {
		t.tb.Fatalf("set a cookie: %v", err)
	}
}

// Go opens an address and waits until the page is there.
func (t *Tab) Go(url string) { t.tb.Helper(); do(t, "open "+url, chromedp.Navigate(url)) }

// Eval evaluates an expression in the page.
func Eval[T any](t *Tab, expression string) T {
	t.tb.Helper()
	return do(t, expression, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Until waits until an expression is true in the page, also in one that comes after this.
func (t *Tab) Until(expression string) {
	t.tb.Helper()
	for deadline := time.Now().Add(stepWithin); ; time.Sleep(lookEvery) {
		ctx, cancel := context.WithTimeout(t.ctx, stepWithin)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		cancel()
		if err == nil && ok {
			return
		}
		if time.Now().After(deadline) {
			t.tb.Fatalf("%s did not come true within %s (%v); the page shows:\n%s", expression, stepWithin, err, t.shown())
		}
	}
}

// Sees waits until the page is read and shows a text.
func (t *Tab) Sees(text string) {
	t.tb.Helper()
	t.Until(fmt.Sprintf("document.readyState === 'complete' && document.body.innerText.includes(%q)", text))
}

// Click clicks the first element of a CSS selector.
func (t *Tab) Click(css string) {
	t.tb.Helper()
	t.Until(fmt.Sprintf("!!document.querySelector(%q)", css))
	do(t, "click "+css, chromedp.Click(chromedp.CSS(css)))
}

// Leave clicks, and waits until another page has come.
func (t *Tab) Leave(css string) {
	t.tb.Helper()
	t.Until(fmt.Sprintf("document.readyState === 'complete' && !!document.querySelector(%q) && (window.here = true)", css))
	do(t, "click "+css, chromedp.Click(chromedp.CSS(css)))
	t.Arrived()
}

// Arrived waits until another page has come than the one that Stay marked.
func (t *Tab) Arrived() { t.tb.Helper(); t.Until("!window.here && document.readyState === 'complete'") }

// Stay marks the page that is there.
func (t *Tab) Stay() { t.tb.Helper(); t.Until("window.here = true") }

// Fill replaces what stands in a field.
func (t *Tab) Fill(css, text string) {
	t.tb.Helper()
	t.Until(fmt.Sprintf("!!document.querySelector(%q)", css))
	do(t, "fill "+css, chromedp.SetValue(chromedp.CSS(css), text))
}

// Keys presses keys, on what has the focus.
func (t *Tab) Keys(keys string) { t.tb.Helper(); do(t, "press keys", chromedp.KeyEvent(keys)) }

// Shot keeps a picture of the whole page under a name, if pictures are wanted.
func (t *Tab) Shot(name string) {
	t.tb.Helper()
	dir := os.Getenv(Screenshots)
	if dir == "" {
		return
	}
	png := do(t, "take a screenshot", chromedp.FullScreenshot(100))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		t.tb.Errorf("keep a screenshot: %v", err)
	}
}

func start() {
	path, err := find()
	if err != nil {
		browser.err = err
		return
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.WSURLReadTimeout(startWithin),
		chromedp.Flag("disable-features", "Translate,OptimizationHints,MediaRouter"), chromedp.Flag("hide-scrollbars", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it does not start as root with one
	}
	allocated, free := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocated)
	browser.stop = func() { cancel(); free() }
	if err := chromedp.Do(ctx); err != nil {
		browser.stop()
		browser.stop, browser.err = nil, fmt.Errorf("start %s: %w", path, err)
		return
	}
	browser.ctx = ctx
}

// find gives the browser's binary.
func find() (string, error) {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path, nil
	}
	if path := installed(); path != "" {
		return path, nil
	}
	if err := debian.Install("chromium", "fonts-dejavu-core"); err != nil {
		return "", fmt.Errorf("no browser: set CHROMIUM to a Chromium, or install the package chromium: %w", err)
	}
	if path := installed(); path != "" {
		return path, nil
	}
	return "", errors.New("no browser: the package chromium was installed and is not on the path; set CHROMIUM")
}

func installed() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
