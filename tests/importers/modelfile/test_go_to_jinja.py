"""Translation of ollama's Go templates to Jinja."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.errors import TemplateError
from bot.importers.go_to_jinja import jinja_from_go
from bot.templates import JinjaTemplate

CONVERSATION = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": "V"},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "<now>",
        "parameters": {"type": "object", "properties": {"b": {"type": "x"}, "a": {"type": "y"}}},
    },
}


def render(source: str, messages: list[dict[str, object]] | None = None) -> str:
    template = JinjaTemplate(jinja_from_go(source))
    return template.render(CONVERSATION if messages is None else messages, tools=[WEATHER])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('{{ range .Messages }}{{ .Role | printf "%s:" }}{{ end }}', "system:user:assistant:user:"),
        ("{{ range $i, $m := .Messages }}{{ $i }}{{ $m.Content }}{{ end }}", "0S1U2A3V"),
        ("{{ range $m := .Messages }}{{ $m.Content }}{{ end }}", "SUAV"),
        ("{{ range .Messages }}{{ .Content }}{{ break }}{{ end }}", "S"),
        (
            '{{ range .Messages }}{{ if eq .Role "user" "tool" }}{{ .Content }}{{ end }}{{ end }}',
            "UV",
        ),
        (
            '{{ range .Messages }}{{ if and (ne .Role "user") (ge (len .Content) 1) }}!{{ end }}.'
            "{{ end }}",
            "!..!..",
        ),
        ("{{ range .Absent }}x{{ else }}none{{ end }}{{ len .Messages }}", "none4"),
        ("{{ with index .Messages 1 }}{{ .Content }}{{ end }}", "U"),
        ("{{ (index .Messages 2).Content }}{{ len .Messages }}", "A4"),
        (
            "{{ with .Absent }}{{ else }}y{{ end }}{{ with $m := .Messages }}{{ len $m }}{{ end }}",
            "y4",
        ),
        ("{{ .Absent }}{{ if .Messages }}{{ end }}", "<no value>"),
        ('{{ not .Messages }} {{ and .System (len .Messages) | printf "%d" }}', "false 4"),
        ("{{ slice .Messages 1 3 | len }}{{ print .System `!` }}", "2S!"),
        ('{{ `raw \\n` }}{{ "\\u4f60\\x21\\t\\"" }}{{ len .Messages }}', 'raw \\n你!\t"4'),
        ("a {{- /* note */ -}} b{{ len .Messages }}", "ab4"),
        ("{{ $n := 1 }}{{ range .Messages }}{{ $n = .Content }}{{ end }}{{ $n }}", "V"),
        ('{{ json .System }}{{ len .Messages }}{{ "{% raw %}{{ x }}" }}', '"S"4{% raw %}{{ x }}'),
        (
            "{{ range .Tools }}{{ range $k, $p := .Function.Parameters.Properties }}"
            "{{ $k }}={{ $p.Type }} {{ end }}{{ .Function.Name }}{{ end }}{{ len .Messages }}",
            "a=y b=x weather4",
        ),
    ],
)
def test_translation_renders_as_go_does(source: str, text: str) -> None:
    assert render(source) == text


def test_tools_are_printed_as_go_s_json() -> None:
    assert '"description":"\\u003cnow\\u003e"' in render("{{ .Tools }}{{ len .Messages }}")


def test_call_arguments_are_printed_alike_as_text_and_as_object() -> None:
    source = (
        "{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}{{ end }}"
    )
    calls = [{"function": {"name": "f", "arguments": given}} for given in ('{"a":1}', {"a": 1})]

    assert render(source, [{"role": "assistant", "content": None, "tool_calls": calls}]) == (
        '{"a":1}{"a":1}'
    )


def test_legacy_template_is_cut_after_the_last_response() -> None:
    source = "{{ .System }}|{{ .Prompt }}|{{ if .Prompt }}{{ .Response }}<a>{{ end }}<b>"

    assert render(source) == "S|U|A<a><b>|V|"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ if .A }}\n\n", "template: :3: unexpected EOF"),
        ("a\n{{ end }}", "template: :2: unexpected {{end}}"),
        ("{{ .A", "template: :1: unclosed action"),
        ("{{ /* a", "template: :1: unclosed comment"),
        ('{{ "a }}', "template: :1: unterminated quoted string"),
        ("{{ }}", "template: :1: missing value for command"),
        ("{{ 12x }}", 'template: :1: bad number syntax: "12x"'),
        (f"{{{{ 0x{'f' * 5000} }}}}", f'template: :1: bad number syntax: "0x{"f" * 68}"'),
        ("{{ .Prompt }}" * 9999, "the template is longer than 65536 characters; shorten it"),
        ("{{ if }}{{ end }}", "template: :1: missing value for if"),
        ("{{ $x }}", 'template: :1: undefined variable "$x"'),
        ("{{ if .A }}{{ $x := 1 }}{{ end }}{{ $x }}", 'template: :1: undefined variable "$x"'),
        ("{{ shout .A }}", 'template: :1: function "shout" not defined'),
        ("{{ break }}", "template: :1: {{break}} outside {{range}}"),
        ('\n{{ template "x" }}', 'template: :2: function "template" not defined'),
        ('{{ printf "%q" .A }}', "template: :1: printf with %q cannot be translated to Jinja"),
        ("{{ len .A .A }}", "template: :1: the function len with 2 arguments cannot be translated"),
        ("{{ range .Messages }}{{ . }}{{ end }}", "template: :1: printing a whole message cannot"),
        ("{{ range .Messages }}{{ .Rol }}{{ end }}", "template: :1: the field .Rol of a message"),
        ("{{ .A 1 }}", "template: :1: an argument for something that is not a function cannot"),
        ("{{ ((((.A)))) " * 100, "template: :1: "),
        ("{{ range .A }}" * 5, "template: :1: ranges nested deeper than 4"),
        ("{{ if .A }}" * 200, "template: :1: nested deeper than 100"),
    ],
)
def test_errors_have_go_s_text_or_name_the_construct(source: str, problem: str) -> None:
    with pytest.raises(TemplateError) as raised:
        jinja_from_go(source)

    assert str(raised.value).startswith(problem)


SOURCE_PARTS = [
    "{{ ",
    " }}",
    "{{- ",
    " -}}",
    "if ",
    "else ",
    "end ",
    "range ",
    ".Messages ",
    ".Content ",
]
MORE_PARTS = [
    "$x ",
    ":= ",
    "= ",
    "(",
    ")",
    "| ",
    "eq ",
    '"a" ',
    "1 ",
    "with ",
    ".Response ",
    "\n",
    "x",
]


@given(st.lists(st.sampled_from(SOURCE_PARTS + MORE_PARTS), max_size=20))
def test_any_source_is_translated_to_valid_jinja_or_rejected(parts: list[str]) -> None:
    try:
        source = jinja_from_go("".join(parts))
    except TemplateError:
        return

    assert JinjaTemplate(source).source == source


def test_translated_source_is_readable() -> None:
    source = jinja_from_go("{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}\n{{ end }}")

    assert source.split("{%- endfor %}", 1)[1] == snapshot("""\

{%- for item in chat.messages %}
  {{- "<|" }}
  {{- item.role }}
  {{- "|>" }}
  {{- item.content }}
  {{- "\\n" }}
{%- endfor %}\
""")
