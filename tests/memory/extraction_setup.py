"""Conversations for memory extraction, and notes in the format of a model."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bot.chat.incoming import Person
from bot.chat.memory import MemoryPlace
from bot.chat.session import StoredTurn, Turn

START = datetime(2026, 11, 21, 9, tzinfo=UTC)
GROUP = MemoryPlace("telegram:5", "telegram:5", is_private=False)
CHARACTERS = {"nora": "Nora", "marlowe": "Marlowe", "lanting": "兰亭"}
_PRESETS = {name: preset for preset, name in CHARACTERS.items()}
FOLDER = Path(__file__).parent
Line = tuple[str, str]
"""A speaker's name and text."""


def read_conversations(language: str) -> Sequence[dict[str, Any]]:
    """Return conversations, each with true notes and questions.

    A note is the number of its turn, the subject, the kind, the quote, and the memory. A question
    states the note that answers it.
    """
    path = FOLDER / f"recall_{language}.json"
    found: Sequence[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def person(name: str) -> Person:
    return Person(f"telegram:{name}", name)


def to_turn(line: Line, number: int = 0) -> Turn:
    """Return a line of a person, or of a character by its name."""
    name, text = line
    at = START + timedelta(minutes=number)
    if name in _PRESETS:
        return Turn("assistant", text, None, at, _PRESETS[name])
    return Turn("user", text, person(name), at)


def to_turns(lines: Sequence[Line]) -> list[StoredTurn]:
    return [StoredTurn(number, to_turn(one, number)) for number, one in enumerate(lines, 1)]


def true_notes(conversation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the notes of a model that makes no mistake."""
    return [
        {
            "turn": turn + 1,
            "speaker": conversation["said"][turn][0],
            "about": about,
            "kind": kind,
            "quote": quote,
            "note": text,
            "ends": "",
        }
        for turn, about, kind, quote, text in conversation["memories"]
    ]
