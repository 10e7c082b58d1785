"""Who said what: a label for every person of a chat, unique, in any script, impossible to forge."""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from bot.chat.incoming import Person
from bot.chat.session import Turn

NamingMode = Literal["default", "add", "not_add"]

_MAX_LABEL_CHARS = 32
_RESERVED = frozenset({"system", "assistant", "user", "tool", "developer", "model", "bot"})
_STRUCTURAL = frozenset("[]{}()<>|:：#\"'`*_\\/@")  # what frames a speaker or a control token


def labels(people: Iterable[Person], bot_name: str) -> dict[str, str]:
    """Give each person, by id, the label that the newest of these sightings leads to.

    A name that is empty, reserved, the bot's, or taken by somebody else gets four hex digits of
    its owner's id, so that it stays the same however many twins come and go.
    """
    newest = {person.id: person.name for person in people}
    cleaned = {one: clean(name) for one, name in newest.items()}
    folded = [label.casefold() for label in cleaned.values()]
    forbidden = _RESERVED | {clean(bot_name).casefold(), ""}
    return {
        one: f"{label or 'user'}#{_mark(one)}"
        if label.casefold() in forbidden or folded.count(label.casefold()) > 1
        else label
        for one, label in cleaned.items()
    }


def clean(name: str) -> str:
    """Keep letters, digits and plain marks of every script; no line break, bracket or colon."""
    kept = (
        " " if character.isspace() else character
        for character in unicodedata.normalize("NFKC", name)
        if character.isspace()
        or (character not in _STRUCTURAL and unicodedata.category(character)[0] != "C")
    )
    return " ".join("".join(kept).split())[:_MAX_LABEL_CHARS].rstrip()


def tagging(mode: NamingMode, turns: Sequence[Turn]) -> bool:
    """Whether lines carry their speaker: `default` begins with the second one (ChatHaruhi 3.0)."""
    if mode == "default":
        return len({turn.speaker.id for turn in turns if turn.speaker}) > 1
    return mode == "add"


def tag(turn: Turn, known: Mapping[str, str], bot_name: str) -> str:
    """One line with its speaker in front, `U1:MSG`."""
    label = known[turn.speaker.id] if turn.speaker else bot_name
    return f"{label}:{turn.text}"


def _mark(person_id: str) -> str:
    return hashlib.sha256(person_id.encode()).hexdigest()[:4]
