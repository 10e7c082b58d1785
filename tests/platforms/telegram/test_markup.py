"""Test that any Markdown becomes a message that follows Telegram's rules for entities."""

import itertools
import os
import random
import re
from dataclasses import replace

import pytest
from aiogram.types import MessageEntity
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.outgoing import Limits
from bot.markup.graphemes import is_visible
from bot.platforms.telegram.limits import plain_text
from bot.platforms.telegram.markup import render_markdown, render_with_fold
from bot.replying.split import split

LIMITS = Limits(4096, "utf16", 1.0, 5, to_visible_text=plain_text, hides_markup=True)
_EMPHASIS = {"bold", "italic", "strikethrough", "spoiler"}
_CODE = {"code", "pre"}
FRAGMENTS = [
    *("*", "**", "***", "_", "__", "~~", "||", "`", "``", "```", "```py\n", "~~~", "\\", "<"),
    *("&amp;", "# ", "#### ", "> ", ">> ", "- ", "  - ", "1. ", "    ", "- [x] ", "---", "\n"),
    *("\n\n", " ", "| a | b |\n|---|:-:|\n", "| 1 | 中 |\n", "$", "$$", "\\(", "\\)", "\\["),
    *("\\frac{a}{b}", "x^2", "[", "](https://e.org)", "![", "<https://e.org>", "https://e.org"),
    *("](tg://user?id=1)", "word", "好的。", "😀", "👩‍👩‍👧", "🇩🇪", "e\u0301", "@alice_2"),
    *("/start@alice_2", "\u200b", "a_b"),
]
MARKDOWN = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=60).map("".join)


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check_message(text: str, entities: list[MessageEntity] | None) -> None:
    """Check the rules that Telegram documents for texts and entities.

    See https://core.telegram.org/bots/api#formatting-options.
    """
    assert is_visible(text)
    marks = entities or []
    assert text == text.rstrip()
    # Telegram trims what is before the first entity.
    assert not text[0].isspace() or ("pre", 0) in [(one.type, one.offset) for one in marks]
    assert len(marks) <= 100
    encoded = text.encode("utf-16-le")
    for one in marks:
        assert one.offset >= 0
        assert one.length > 0
        assert one.offset + one.length <= len(encoded) // 2
        part = encoded[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le")
        assert part.strip(), "an entity without visible text"
    for one, other in itertools.combinations(marks, 2):
        first, second = sorted((one, other), key=lambda mark: (mark.offset, -mark.length))
        if second.offset >= first.offset + first.length:
            continue
        assert second.offset + second.length <= first.offset + first.length, "they overlap"
        kinds = {first.type, second.type}
        assert not (kinds & _CODE and kinds & _EMPHASIS), "emphasis around or within code"
        assert first.type not in _CODE, "code contains something"
        assert first.type != second.type, "one style within itself"
        if first.type not in _EMPHASIS and second.type not in _EMPHASIS:
            assert first.type == "blockquote", f"{second.type} within {first.type}"


def check_source(source: str, limits: Limits) -> None:
    for part in split(source, limits):
        text, entities = render_markdown(part)
        check_message(text, entities)
        assert units(text) <= limits.max_units


@given(MARKDOWN)
def test_any_markdown_becomes_a_valid_message(source: str) -> None:
    check_source(source, LIMITS)


@given(MARKDOWN, st.integers(20, 80))
def test_any_part_of_any_markdown_becomes_a_valid_message(source: str, max_units: int) -> None:
    check_source(source, replace(LIMITS, max_units=max_units))


@pytest.mark.parametrize("before", ["", "> ", ">> ", "- a\n  - b\n    "])
def test_split_code_keeps_the_indentation_of_the_first_line_of_each_part(before: str) -> None:
    lines = [f"{' ' * (4 * (number % 3))}step_{number}()" for number in range(60)]
    *items, margin = before.split("\n")
    source = "\n".join([*items, *(margin + one for one in ("```py", *lines, "```"))])
    shown = []
    for part in split(source, replace(LIMITS, max_units=100)):
        text, entities = render_markdown(part)
        check_message(text, entities)
        code = [one for one in entities or [] if one.type == "pre"]
        shown += [one.extract_from(text) for one in code]
        assert items or [one.offset for one in code] == [0]
        assert all(one.language == "py" for one in code)
    assert "\n".join(shown).splitlines() == lines
    assert any(one[0] == " " for one in shown)


def test_split_code_in_a_quote_ends_with_the_quote() -> None:
    code = [f"> {'  ' * (number % 3)}step_{number}()" for number in range(30)]
    prose = [f"plain words {number}." for number in range(30)]
    for part in split("\n".join(["> ```py", *code, *prose]), replace(LIMITS, max_units=100)):
        text, entities = render_markdown(part)
        check_message(text, entities)
        code_shown = [one.extract_from(text) for one in entities or [] if one.type == "pre"]
        assert ("step" in text) == bool(code_shown)
        assert not any("plain" in one for one in code_shown)
        assert "`" not in text


def test_least_important_entities_are_left_out_if_there_are_too_many() -> None:
    source = f"{'*a* ' * 150}||hidden|| [docs](https://e.org) `code` ask @alice_2"
    for text, entities in (render_markdown(source), render_with_fold(source, "thoughts")):
        check_message(text, entities)
        assert entities is not None
        assert len(entities) == 100
        shown = [one.extract_from(text) for one in entities]
        assert [one for one in shown if one not in {"a", "thoughts"}] == [
            "hidden",
            "docs",
            "code",
            "@alice_2",
        ]


def test_mention_whose_entity_was_left_out_notifies_nobody() -> None:
    text, entities = render_markdown("||a|| " * 99 + "@alice_2 @bob_smith @carol_1")
    check_message(text, entities)
    assert text.endswith("@alice_2 \uff20bob_smith \uff20carol_1")


@pytest.mark.soak
def test_hundred_thousand_random_texts_become_valid_messages() -> None:
    seed = int(os.environ.get("TROUPE_SEED", random.randrange(2**32)))  # noqa: TID251 # a test's own
    print(f"TROUPE_SEED={seed}")  # noqa: T201 -- to repeat it
    dice = random.Random(seed)
    for _ in range(100_000):
        source = "".join(dice.choices(FRAGMENTS, k=dice.randrange(1, 50)))
        check_source(source, LIMITS)


@given(before=st.text(st.characters(exclude_categories=["Cs"])))
def test_mention_after_any_text_becomes_code(before: str) -> None:
    text, marks = render_markdown(f"{before} (@alice_2)")
    encoded = text.encode("utf-16-le")
    coded = [mark for mark in marks or [] if mark.type in {"code", "pre"}]
    outside = encoded
    for mark in coded:
        start, end = 2 * mark.offset, 2 * (mark.offset + mark.length)
        outside = outside[:start] + "`".encode("utf-16-le") * mark.length + outside[end:]
    assert re.search(r"(?<!\w)@alice_2", outside.decode("utf-16-le")) is None
    assert "alice_2" in text


def test_text_without_mentions_has_no_entities() -> None:
    assert render_markdown("mail@host @ 5 @me") == ("mail@host @ 5 @me", None)


def test_mention_interrupted_by_code_notifies_nobody() -> None:
    text, _ = render_markdown("@`h`ere and @he`re` but `@here`")
    assert text == "\uff20here and \uff20here but @here"
