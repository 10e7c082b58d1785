"""JSON with comments is parsed with line numbers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.jsonc import MAX_CHARS, MAX_COMMAS, JsonSyntaxError, read_json

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
def test_any_text_is_parsed_or_rejected_with_a_line(text: str) -> None:
    line = 1
    try:
        read_json(text)
    except JsonSyntaxError as error:
        line = error.line

    assert 1 <= line <= text.count("\n") + 1


def test_comments_and_trailing_commas_are_allowed() -> None:
    document = read_json('// a\n{"a": [1, /* two */ 2,], // b\n "b": "// no comment",}')

    assert document.value == {"a": [1, 2], "b": "// no comment"}
    assert document.line_of(("b",)) == 3
    assert document.line_of(("a", 5, "gone")) == 2


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "the text ends too early"),
        ('{"a": 1,\n "a": 2}', 2, "duplicate key 'a', first in line 1"),
        ('{"a": 1\n "b": 2}', 2, 'a "," or "}" is missing here'),
        ('{"a"\n 1}', 2, "a \":\" is missing after the key 'a'"),
        ("{\n\n'a': 1}", 3, 'a key in double quotes or a "}" is missing here'),
        ("{\n[", 2, 'a key in double quotes or a "}" is missing here'),
        ("[1,\n2", 2, 'the bracket opened in line 1 is never closed by "]"'),
        ('["a\nb"]', 1, "invalid control character at"),
        ("[NaN]", 1, "NaN is not a JSON number"),
        ("[1e999]", 1, "this number is too large"),
        (f"[{'9' * 5000}]", 1, "this number is too long"),
        ('["\\ud83d"]', 1, "this text has a lone surrogate, which cannot be stored"),
        ("[] /* open", 1, "this comment is never closed by */"),
        ("{}\n{}", 2, "there is more text after the end of the JSON"),
        ("[" * 1000, 1, "brackets are nested deeper than 64"),
    ],
)
def test_errors_name_the_problem_and_the_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(JsonSyntaxError) as raised:
        read_json(text)

    assert (raised.value.line, str(raised.value)) == (line, problem)


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ('"a": 1, "a": 2', "an object has the same key twice"),
        ('"a": "\\ud83d"', "this text has a lone surrogate, which cannot be stored"),
        ('"a": 1e999', "this number is too large"),
        ('"a": NaN', "NaN is not a JSON number"),
        ('"a": 1,', "property name enclosed in double quotes"),
        (f'"a": {"[" * 70}{"]" * 70}', "brackets are nested deeper than 64"),
        (f'"a": {"[" * 9000}{"]" * 9000}', "brackets are nested deeper than 64"),
        (f'"a": "{"x" * MAX_CHARS}"', "the text is longer than"),
    ],
)
def test_large_texts_follow_the_same_rules(end: str, problem: str) -> None:
    values = ", ".join(map(str, range(MAX_COMMAS + 2)))
    assert read_json(f'{{"list": [{values}], "b": 1}}').value == {
        "list": list(range(MAX_COMMAS + 2)),
        "b": 1,
    }
    with pytest.raises(JsonSyntaxError) as raised:
        read_json(f'{{"list": [{values}], {end}}}')
    assert problem in str(raised.value.problem)
