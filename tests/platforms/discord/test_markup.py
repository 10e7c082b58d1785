"""Markdown in Discord's dialect."""

import pytest
from hypothesis import example, given

from bot.chat.outgoing import Limits
from bot.markup.graphemes import is_visible
from bot.platforms.discord.markup import to_dialect
from bot.replying.split import split
from tests.platforms.telegram.test_markup import MARKDOWN

LIMITS = Limits(2000, "characters", 1.2, 8, render=to_dialect)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("plain *t* **b** ||s||\n> q\n# h\n- l", "plain *t* **b** ||s||\n> q\n# h\n- l"),
        ("#### Deep\ntext", "**Deep**\ntext"),
        ("a\n\n---\nb", "a\n\n⸻\nb"),
        ("see\n\n|a|b|\n|-|-:|\n|1|22|", "see\n\n```\na │  b\n──┼───\n1 │ 22\n```"),
        ("$x_1$ for $5 or $6 `$x^2$`", "x₁ for $5 or $6 `$x^2$`"),
        ("$x^{ab*}$", "`x^(ab*)`"),
        ("$$\n\\frac{a}{b}\n$$", "```\na/b\n```"),
        ("~~~py\nx_1\n~~~", "```py\nx_1\n```"),
        ("- [ ] a\n- [x] b", "- ☐ a\n- ☑ b"),
        ("![cat](https://e.org/c.png)", "[cat](https://e.org/c.png)"),
        ("```\n#### no\n$x^2$\n```", "```\n#### no\n$x^2$\n```"),
    ],
)
def test_what_discord_does_not_know_is_written_readably(source: str, written: str) -> None:
    assert to_dialect(source) == written


@given(MARKDOWN)
@example("$$ $$\x1b")  # what is left without the signs of the formula cannot be seen
def test_any_part_of_any_markdown_fits(source: str) -> None:
    for part in split(source, LIMITS):
        assert is_visible(to_dialect(part))
        assert len(to_dialect(part)) <= 2000
