"""Translation of ollama's Go templates to Jinja."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.errors import TemplateError
from bot.importers.go_to_jinja import jinja_from_go
from bot.templates import JinjaTemplate
from tests.importers.refusals import assert_has_a_translation

TABLES = json.loads((Path(__file__).parent / "go_templates.json").read_text("utf-8"))
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


@pytest.mark.parametrize(("source", "text"), TABLES["rendered"])
def test_translated_template_renders_the_same_as_in_go(source: str, text: str) -> None:
    assert render(source) == text


def test_tools_are_printed_as_json_like_in_go() -> None:
    assert '"description":"\\u003cnow\\u003e"' in render("{{ .Tools }}{{ len .Messages }}")


def test_call_arguments_print_the_same_whether_text_or_object() -> None:
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
        *TABLES["errors"],
        (f"{{{{ 0x{'f' * 5000} }}}}", f'template: :1: bad number syntax: "0x{"f" * 68}"'),
        ("{{ .Prompt }}" * 9999, "the template is longer than 65536 characters; shorten it"),
        ("{{ ((((.A)))) " * 100, "template: :1: "),
        ("{{ if .A }}" * 200, "template: :1: nested deeper than 100"),
    ],
)
def test_errors_match_go_or_name_the_unsupported_construct(source: str, problem: str) -> None:
    with pytest.raises(TemplateError) as raised:
        jinja_from_go(source)

    assert str(raised.value).startswith(problem)
    assert_has_a_translation(raised.value)


@given(st.lists(st.sampled_from(TABLES["parts"]), max_size=20))
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
