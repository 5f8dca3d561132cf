package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxFile bounds a file in bytes: 16 MiB hold about 50,000 keys.
	MaxFile = 16 << 20
	// maxAliases bounds how often anchors are followed, so that a short file cannot stand for an endless one.
	maxAliases = 10_000
	// maxNesting bounds brackets within brackets; no format that is read here has more than a few.
	maxNesting = 64
)

// Reader reads one file.
type Reader struct {
	File     string
	Faults   Faults
	Warnings Faults                    // what is no fault and worth a look
	Override func(field string) string // another source of a field's text, by its path; "" when it has none. nil: no other source
	Asked    func(path string)         // told of each field that is asked for, there or not. nil: nobody is
	anchors  map[string]ast.Node
	aliases  int
}

// Node is a value of the file, or its absence.
type Node struct {
	r     *Reader
	n     ast.Node // nil: absent or null
	text  *string  // given by Override
	path  string
	pos   Pos
	fixed bool // inside a list or a map of names: Override is not asked
}

// byteOrderMark begins the files of some editors.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Read parses the file's text. Faults of the syntax are noted, and the node is then absent.
func (r *Reader) Read(data []byte) Node {
	root := Node{r: r, pos: Pos{File: r.File, Line: 1}}
	if len(data) > MaxFile {
		r.Faults.Add(Fault{Pos: Pos{File: r.File}, Rule: fmt.Sprintf("the file is %d bytes long: at most %d are read", len(data), MaxFile)})
		return root
	}
	root.n = r.parse(bytes.TrimPrefix(data, byteOrderMark), root.pos)
	return root
}

func (r *Reader) parse(data []byte, at Pos) ast.Node {
	if deep(data) {
		r.Faults.Add(Fault{Pos: at, Rule: fmt.Sprintf("the YAML nests deeper than %d levels", maxNesting)})
		return nil
	}
	file, err := parseBytes(data)
	if err != nil {
		f := Fault{Pos: at, Rule: "not valid YAML: " + firstLine(err.Error())}
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			f.Rule = "not valid YAML: " + firstLine(syntax.GetMessage())
			if t := syntax.GetToken(); at.Line > 0 && t != nil && t.Position != nil {
				f.Pos.Line = t.Position.Line
			}
		}
		r.Faults.Add(f)
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.CommentGroupType {
			continue
		}
		if body != nil {
			r.Faults.Add(Fault{Pos: Pos{File: at.File, Line: lineOf(doc.Body, at.Line)}, Rule: "a second document (---): a file holds one"})
			break
		}
		body = doc.Body
	}
	if body != nil {
		r.anchors = map[string]ast.Node{}
		r.collect(body)
	}
	return body
}

// parseBytes parses with the library, whose parser is known to panic on some broken texts: that is one more syntax error.
func parseBytes(data []byte) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, errors.New("the text cannot be read as YAML")
		}
	}()
	return parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
}

// deep says whether brackets or indentation nest further than any format read here.
func deep(data []byte) bool {
	level, indent := 0, 0
	start := true
	for _, c := range data {
		switch {
		case c == '\n':
			start, indent = true, 0
			continue
		case start && (c == ' ' || c == '-' || c == '?'):
			indent++
			if indent > 16*maxNesting {
				return true
			}
			continue
		case c == '[' || c == '{':
			level++
		case (c == ']' || c == '}') && level > 0:
			level--
		}
		start = false
		if level > maxNesting {
			return true
		}
	}
	return false
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// collect finds the anchors of the file.
func (r *Reader) collect(n ast.Node) {
	ast.Walk(visit(func(n ast.Node) bool {
		if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil && a.Name.GetToken() != nil {
			name := a.Name.GetToken().Value
			if _, twice := r.anchors[name]; !twice {
				r.anchors[name] = a.Value
			}
		}
		return true
	}), n)
}

type visit func(ast.Node) bool

func (v visit) Visit(n ast.Node) ast.Visitor {
	if n != nil && v(n) {
		return v
	}
	return nil
}

func lineOf(n ast.Node, otherwise int) int {
	if t := tokenOf(n); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return otherwise
}

// tokenOf gives a node's token; some nodes of broken files have none.
func tokenOf(n ast.Node) (t *token.Token) {
	defer func() {
		if recover() != nil {
			t = nil
		}
	}()
	if n == nil {
		return nil
	}
	return n.GetToken()
}

// plain follows anchors, aliases and tags to the value itself; nil for null and for nothing.
func (r *Reader) plain(n ast.Node, at Pos) ast.Node {
	for depth := 0; n != nil; depth++ {
		if depth > maxNesting {
			r.Faults.Add(Fault{Pos: at, Rule: "an alias that leads to itself"})
			return nil
		}
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.TagNode:
			n = v.Value
		case *ast.AliasNode:
			r.aliases++
			if r.aliases > maxAliases {
				r.Faults.Add(Fault{Pos: at, Rule: fmt.Sprintf("aliases are used more than %d times", maxAliases)})
				return nil
			}
			name := ""
			if t := tokenOf(v.Value); t != nil {
				name = t.Value
			}
			target, ok := r.anchors[name]
			if !ok {
				r.Faults.Add(Fault{Pos: at, Rule: fmt.Sprintf("alias *%s: there is no such anchor", name)})
				return nil
			}
			n = target
		case *ast.NullNode, *ast.CommentGroupNode, *ast.CommentNode:
			return nil
		default:
			return n
		}
	}
	return nil
}

// Absent says that the field is not there, or null.
func (n Node) Absent() bool { return n.n == nil && n.text == nil }

// Pos is where the value stands, or should stand.
func (n Node) Pos() Pos { return n.pos }

// Path is the field's name from the top.
func (n Node) Path() string { return n.path }

// Wrong notes that the value breaks a rule.
func (n Node) Wrong(rule string, args ...any) {
	if len(args) > 0 {
		rule = fmt.Sprintf(rule, args...)
	}
	n.r.Faults.Add(Fault{Pos: n.pos, Field: n.path, Value: n.shown(), Rule: rule})
}

// Warn notes that the value is worth a look.
func (n Node) Warn(rule string, args ...any) {
	n.r.Warnings.Add(Fault{Pos: n.pos, Field: n.path, Value: n.shown(), Rule: fmt.Sprintf(rule, args...)})
}

// WrongSecret notes that the value breaks a rule, and does not show it: what was given by mistake may be a secret.
func (n Node) WrongSecret(rule string) {
	n.r.Faults.Add(Fault{Pos: n.pos, Field: n.path, Rule: rule})
}

// shown is the value as a message shows it.
func (n Node) shown() string {
	if n.text != nil {
		return *n.text
	}
	switch v := n.n.(type) {
	case nil:
		return ""
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a map"
	case *ast.SequenceNode:
		return "a list"
	case *ast.LiteralNode:
		return v.Value.Value
	default:
		s, _ := scalar(v)
		if s == "" {
			return `""`
		}
		return s
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
