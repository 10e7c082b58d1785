"""JSON with comments is parsed, and errors have line numbers."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.jsonc import MAX_CHARS, JsonSyntaxError, read_json

MISTAKES = json.loads((Path(__file__).parent / "mistakes.json").read_text("utf-8"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.sampled_from([None, 2]))
def test_parses_what_json_dumps_writes(value: object, indent: int | None) -> None:
    assert read_json(json.dumps(value, indent=indent)).value == json.loads(json.dumps(value))


@given(st.text('{}[]",:/*-1e \n', max_size=30))
def test_any_text_is_parsed_or_rejected_with_a_line_number(text: str) -> None:
    line = 1
    try:
        read_json(text)
    except JsonSyntaxError as error:
        line = error.line_number

    assert 1 <= line <= text.count("\n") + 1


def test_comments_and_trailing_commas_are_allowed() -> None:
    document = read_json('// a\n{"a": [1, /* two */ 2,], // b\n "b": "// no comment",}')

    assert document.value == {"a": [1, 2], "b": "// no comment"}
    assert document.line_at(("b",)) == 3
    assert document.line_at(("a", 5, "gone")) == 2


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        *MISTAKES,
        (f"[{'9' * 5000}]", 1, "this number is too large"),
        ("[" * 1000, 1, "brackets are nested more than 64 levels deep"),
        (f'{{"a": {"[" * 9000}{"]" * 9000}}}', 1, "brackets are nested more than 64 levels deep"),
        (f'["{"x" * MAX_CHARS}"]', 1, "the text is longer than 10,485,760 characters"),
    ],
)
def test_errors_state_the_problem_and_the_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(JsonSyntaxError) as raised:
        read_json(text)

    assert (raised.value.line_number, str(raised.value)) == (line, problem)


@given(values, st.text("/*,] \n", max_size=8))
def test_strings_are_never_mistaken_for_comments(value: object, text: str) -> None:
    assert read_json(json.dumps([text, value, f'"{text}'])).value == [text, value, f'"{text}']


def test_hostile_text_is_rejected_quickly() -> None:
    begun = time.process_time()
    for text in ("/*" * 400_000, "," * 800_000, '"' * 800_000, "[1, " * 200_000):
        with pytest.raises(JsonSyntaxError):
            read_json(text)
    assert time.process_time() - begun < 5
