"""Test the conversion of Markdown to Discord's dialect."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given

from bot.chat.outgoing import Limits
from bot.markup.graphemes import is_visible
from bot.platforms.discord.markup import to_discord_markdown
from bot.replying.split import split
from tests.platforms.telegram.test_markup import MARKDOWN

DIALECT = tomllib.loads(Path(__file__).with_name("dialect.toml").read_text("utf-8"))
LIMITS = Limits(2000, "characters", 1.2, 8, to_visible_text=to_discord_markdown)


@pytest.mark.parametrize(("source", "written"), DIALECT["written"])
def test_unsupported_markup_becomes_readable_text(source: str, written: str) -> None:
    assert to_discord_markdown(source) == written


@given(MARKDOWN)
@example("$$ $$\x1b")  # what is left without the signs of the formula cannot be seen
def test_any_part_of_any_markdown_fits_into_a_message(source: str) -> None:
    for part in split(source, LIMITS):
        assert is_visible(to_discord_markdown(part))
        assert len(to_discord_markdown(part)) <= 2000
