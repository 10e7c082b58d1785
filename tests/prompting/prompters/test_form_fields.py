"""Form fields are filled once, from a text, a mapping, or the lines of a command."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import UserError
from bot.prompting.prompters import assign_fields, fill_fields, find_field_names, parse_fields

TABLES = json.loads((Path(__file__).parent / "form_fields.json").read_text("utf-8"))
texts = st.text("{}ab \n", max_size=20)


def test_field_names_are_words_of_any_script_in_order() -> None:
    assert find_field_names("{b} {上下文} {} {a-b} {b}", "{a}") == ("b", "上下文", "a")


@given(texts, texts, texts)
def test_values_are_never_expanded(text: str, first: str, second: str) -> None:
    filled = fill_fields(text, {"a": first, "b": second})

    pieces = text.replace("{a}", "\0").replace("{b}", "\1")
    assert filled == pieces.replace("\0", first + "\2").replace("\1", second).replace("\2", "")


@pytest.mark.parametrize(("given_input", "problem"), TABLES["errors"])
def test_error_states_the_invalid_value(given_input: object, problem: str) -> None:
    with pytest.raises(UserError) as raised:
        assign_fields(["a", "b"], given_input)

    assert str(raised.value) == problem


@pytest.mark.parametrize(("text", "values"), TABLES["lines"])
def test_command_lines_are_parsed_into_fields(text: str, values: object) -> None:
    assert parse_fields(text, ["context", "question"]) == values


def test_text_is_unchanged_if_there_are_no_fields() -> None:
    assert parse_fields("a: b", []) == "a: b"
