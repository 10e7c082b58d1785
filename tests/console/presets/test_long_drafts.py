"""Drafts that are long, by mistake or on purpose, do not keep the service from answering."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bot.chat.drafts import PresetDraft
from bot.console.presets.editing import MAX_CONTENT_CHARS
from bot.errors import UserError
from bot.prompting.presets.preset import Preset
from bot.prompting.presets.problems import MAX_PROBLEMS
from tests.support.console import Playground, call

_LEAST = {"name": "nora", "provider": "echo", "model": "m"}


async def test_only_the_first_mistakes_are_described(console: Playground) -> None:
    """A description takes a quarter of a millisecond, and a text has room for 300,000 mistakes."""
    unknown = {f"key{number}": 1 for number in range(1000)}
    text = json.dumps({**_LEAST, **unknown}, indent=0)

    _, answer = await call(console, "POST", "/preset-check", {"content": text})

    problems = answer["problems"]
    assert [one["line"] for one in problems] == list(range(5, 5 + MAX_PROBLEMS + 1))
    assert problems[-1]["text"] == "900 more mistakes"


async def test_long_text_is_checked_in_a_thread(console: Playground) -> None:
    checked_in: list[int] = []

    def note_thread(_: Preset) -> Sequence[str]:
        checked_in.append(threading.get_ident())
        return []

    editing = replace(console.service.console.preset_editing, unsupported=note_thread)
    for system in ("", "x" * 100_000):
        assert (await editing.check(json.dumps({**_LEAST, "system": system}))).preset is not None

    assert checked_in[0] == threading.get_ident()
    assert checked_in[1] != threading.get_ident()


async def test_draft_that_is_too_long_is_refused_wherever_it_comes_from(
    console: Playground,
) -> None:
    """A card of ten megabytes would make one of forty."""
    editing = console.service.console.preset_editing
    text = "x" * (MAX_CONTENT_CHARS + 1)

    with pytest.raises(UserError, match="may have up to 4,000,000 characters"):
        await editing.begin_draft(PresetDraft("long", 0, 1, text, 0), "session", "import")
    with pytest.raises(UserError, match="may have up to 4,000,000 characters"):
        await editing.save_draft("nora", text, 0)
