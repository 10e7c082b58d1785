"""Test that a model's thoughts are hidden or folded, as the preset says, and never too long."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.outgoing import Attachment, Limits, MessageContent, OutgoingPart
from bot.chat.prompt import ReasoningDelta
from bot.platforms.discord.surface import DISCORD_LIMITS as ON_DISCORD
from bot.platforms.telegram.limits import GROUP_LIMITS as ON_TELEGRAM
from bot.platforms.telegram.markup import render_with_fold
from bot.replying.answer_parts import fold_thoughts
from bot.replying.split import split
from bot.storage.database import Database
from tests.fakes import LIMITS, ScriptStep
from tests.turn.setup import Setup

FOLDING = replace(LIMITS, folds_thoughts=True)


def parts_of(text: str, limits: Limits) -> list[OutgoingPart]:
    texts = split(text, limits)
    return [OutgoingPart(part, MessageContent(one)) for part, one in enumerate(texts)]


def units(text: str, limits: Limits) -> int:
    return len(text.encode("utf-16-le")) // 2 if limits.unit == "utf16" else len(text)


@pytest.mark.parametrize("limits", [ON_DISCORD, ON_TELEGRAM], ids=["Discord", "Telegram"])
@given(
    answer=st.integers(1, 9000),
    thoughts=st.text(min_size=1, max_size=60).filter(lambda text: text.strip()),
    times=st.integers(1, 200),
)
def test_folded_thoughts_never_exceed_the_message_limit(
    limits: Limits, answer: int, thoughts: str, times: int
) -> None:
    parts = parts_of("word " * (answer // 5 + 1), limits)
    folded = fold_thoughts(parts, thoughts * times, limits, may_add_message=True)
    [content] = [one.content for one in folded if one.content.thoughts]
    shown = f"{content.text}\n\n💭 ||{content.thoughts}||"
    assert units(shown, limits) <= limits.max_units
    shown_texts = [one.content.text for one in folded if one.content.text]
    assert shown_texts == [one.content.text for one in parts]
    assert len({one.number for one in folded}) == len(folded)


def test_thoughts_get_a_separate_message_if_the_last_message_is_full() -> None:
    parts = parts_of("x" * 1900, ON_DISCORD)
    thoughts = "hm " * 500
    assert fold_thoughts(parts, thoughts, ON_DISCORD, may_add_message=False) == tuple(parts)
    first, second = fold_thoughts(parts, thoughts, ON_DISCORD, may_add_message=True)
    assert (first, second.number, second.content.text) == (parts[0], 1, "")
    assert second.content.thoughts == thoughts.strip()


@given(st.text("|`a ", min_size=1).filter(lambda text: text.strip()))
def test_thoughts_cannot_end_their_spoiler(thoughts: str) -> None:
    [part] = fold_thoughts(parts_of("Hi.", ON_DISCORD), thoughts, ON_DISCORD, may_add_message=False)
    inside = part.content.thoughts
    assert "||" not in inside
    assert "```" not in inside
    assert not inside.endswith("|")


def test_thoughts_are_added_to_the_message_and_not_to_the_file() -> None:
    file = OutgoingPart(5000, MessageContent("whole"), Attachment("answer.md", "..."))
    parts = [*parts_of("short", ON_DISCORD), file]
    folded = fold_thoughts(parts, "hm", ON_DISCORD, may_add_message=True)
    assert [one.content.thoughts for one in folded] == ["hm", ""]


def test_thoughts_on_telegram_mention_nobody_and_come_last() -> None:
    text, entities = render_with_fold("**Hi**, @alice", "💭 ask @bob")
    assert text == "Hi, @alice\n\n💭 ask \uff20bob"
    assert [one.type for one in entities] == ["bold", "code", "expandable_blockquote"]
    assert (entities[-1].offset, entities[-1].length) == (12, 11)


@pytest.mark.parametrize(
    ("chosen", "limits", "shown"),
    [
        ("folded", FOLDING, "Hm. Hello?"),
        ("hidden", FOLDING, ""),
        ("folded", LIMITS, ""),
    ],
)
async def test_thoughts_are_shown_only_where_a_preset_folds_them(
    database: Database, chosen: str, limits: Limits, shown: str
) -> None:
    script: list[ScriptStep] = [ReasoningDelta("Hm. "), ReasoningDelta("Hello?"), "Hi."]
    setup = Setup(database, script, limits=limits, preset={"thoughts": chosen})
    await setup.say("hello")
    assert setup.texts == ["Hi."]
    assert [one.thoughts for one in setup.surface.contents] == [shown]
    assert await setup.history() == [("user", "hello"), ("assistant", "Hi.")]
