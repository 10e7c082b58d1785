"""Macros are expanded once, and values never become macros."""

import json
import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.macros import MacroBudget, Macros, convert_story_string
from tests.attacks import attacks, expanded

TABLES = json.loads((Path(__file__).parent / "macros.json").read_text("utf-8"))
AT = datetime(2026, 11, 21, 15, 7, tzinfo=UTC)


def macros(**fields: str) -> Macros:
    return Macros("Nova", "Alice", AT, rng=random.Random(7), budget=MacroBudget(), fields=fields)


def test_names_are_expanded_in_any_case_and_in_the_legacy_form() -> None:
    text = "{{char}} meets {{User}}; {{ CHAR }} bows to <USER>, says <bot>."

    assert macros().expand(text) == "Nova meets Alice; Nova bows to Alice, says Nova."


def test_unknown_or_unclosed_macros_are_unchanged() -> None:
    for text in ("{{lumia::a::b}}", "{{ {% raw %} }}", "{{", "}}{{", "{{ 7*7 }}", "{{/if}}"):
        assert macros().expand(text) == text
    assert macros().expand("{{ open {{char}}") == "{{ open Nova"


@pytest.mark.parametrize(("text", "filled"), TABLES["macros"])
def test_macro_values_match_sillytavern(text: str, filled: str) -> None:
    assert macros(group="Nova, Eve", notchar="Alice").expand(text) == filled


def test_pick_is_the_same_in_every_prompt_of_a_session_and_random_is_not() -> None:
    numbers = ",".join(map(str, range(1000)))
    first, later = macros(), replace(macros(), rng=random.Random(8))

    assert first.expand(f"{{{{pick:{numbers}}}}}") == later.expand(f"{{{{pick:{numbers}}}}}")
    assert first.expand(f"{{{{random:{numbers}}}}}") != later.expand(f"{{{{random:{numbers}}}}}")


def test_value_of_a_variable_is_not_expanded_again() -> None:
    one = macros(lastmessage="{{char}}")

    assert one.expand("{{setvar::x::{{lastMessage}}}}{{getvar::x}}{{.x}}") == "{{char}}" * 2


def test_time_macros_match_sillytavern() -> None:
    text = "{{time}} | {{date}} | {{weekday}} | {{isotime}} | {{isodate}} | {{time_UTC+8}}"

    assert macros().expand(text) == (
        "3:07 PM | November 21, 2026 | Saturday | 15:07 | 2026-11-21 | 11:07 PM"
    )


def test_random_chooses_one_option_even_if_options_contain_commas() -> None:
    assert macros().expand("{{random:red, red}}") == "red"
    assert macros().expand("{{random::red, blue::red, blue}}") == "red, blue"
    assert macros().expand("{{pick:{{char}},{{char}}}}") == "Nova"


def test_number_of_characters_inserted_by_macros_of_a_prompt_is_limited() -> None:
    one = macros(input="x" * 4_000)
    expanded_texts = [one.expand("{{input}}" * 800), replace(one).expand("{{input}}" * 800)]

    assert sum(text.count("x") for text in expanded_texts) == 4_000_000
    assert expanded_texts[1].endswith("{{input}}")
    assert macros().expand("{{char}}") == "Nova"  # the next prompt


def test_number_of_macros_of_a_prompt_is_limited() -> None:
    for text in ("{{noop}}", "{{roll:100d6}}", "{{random:" + "a," * 100 + "}}"):
        budget = MacroBudget(macros_left=100)
        one = replace(macros(), budget=budget)

        assert one.expand(text * 101).endswith(text)
        assert budget.is_spent()


def test_roll_is_within_the_range_of_the_dice() -> None:
    rolled = [int(macros().expand(f"{{{{roll:{roll}}}}}")) for roll in ("6", "d6", "3d6+2")]

    assert all(1 <= roll <= 6 for roll in rolled[:2])
    assert 5 <= rolled[2] <= 20
    assert macros().expand("[{{roll:9999d9}}][{{roll:x}}]") == "[][]"
    assert macros().expand("{{roll 1d1}}") == "1"


def test_comments_are_removed_and_trim_removes_line_breaks() -> None:
    assert macros().expand("a{{// a note}}b{{comment: c}}{{noop}}") == "ab"
    assert macros().expand("a\n\n{{trim}}\n\nb{{newline}}c{{reverse:cba}}") == "ab\ncabc"


@given(st.text(alphabet="{}charuse:,<>/ \n", max_size=60))
def test_values_are_not_expanded_again(name: str) -> None:
    filled = macros(lastusermessage="{{char}}" + name).expand("{{lastUserMessage}}")

    assert filled == "{{char}}" + name


def test_jinja_in_a_card_is_plain_text() -> None:
    for case in attacks("ssti"):
        text = (
            expanded(case["input"]) if not isinstance(case["input"], dict) else str(case["input"])
        )
        assert "49" not in macros().expand(text) or "49" in text


def test_hostile_braces_and_line_breaks_are_processed_quickly() -> None:
    breaks = "\n" * 100_000 + "x{{trim}}"
    for text in (
        breaks,
        "{{" * 200_000,
        "{{random:" * 20_000 + "}}" * 20_000,
        "{{reverse:" * 5_000,
        "{{if 1}}" * 50_000 + "{{/if}}" * 50_000,
        "{{if 1}}" * 50_000 + "{{/trim}}{{else}}" * 50_000,
        "{{setvar::x::aaaa}}" + "{{addvar::x::{{getvar::x}}}}" * 10_000,
        "{{setvar::x::" + "a" * 900_000 + "}}" + "{{.x > 1}}" * 20_000,
        "{{foo::" * 20_000 + "}}" * 20_000,
        "{{datetimeformat " + "[" * 60_000 + "}}",
        *("{{!" * 16_000, "{{#if " * 8_000, "{{#if" + " " * 50_000, "{{" + " " * 50_000),
    ):
        begun = time.process_time()
        macros().expand(text)
        macros().expand(convert_story_string(text[:50_000]))
        assert time.process_time() - begun < 5
