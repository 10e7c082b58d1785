"""User personas: how people describe themselves (`/me`), sanitized for a prompt."""

import unicodedata
from collections.abc import Iterable, Mapping

MAX_PERSONA_CHARS = 500
MAX_SPEAKERS_WITH_PERSONA = 16
"""How many of the last speakers are looked up."""

_MAX_DESCRIBED = 8
_SQUARE_BRACKETS = str.maketrans("()（）﹙﹚⁽⁾₍₎", "[][][][][]")


def sanitize_persona(text: str) -> str:
    """Return one line without invisible characters, which cannot forge a turn."""
    kept = (
        " " if char.isspace() else char
        for char in unicodedata.normalize("NFC", text)
        if char.isspace() or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"}
    )
    line = " ".join("".join(kept).split())
    return line if len(line) <= MAX_PERSONA_CHARS else line[: MAX_PERSONA_CHARS - 1] + "…"


def describe_speakers(
    speakers: Iterable[str], labels: Mapping[str, str], personas: Mapping[str, str]
) -> str:
    """Return how the speakers (ids, newest first) describe themselves, a line each."""
    if not personas:
        return ""
    lines = [
        f"({labels[one]} says of themselves: {_without_round_brackets(personas[one])})"
        for one in dict.fromkeys(speakers)
        if personas.get(one)
    ]
    return "\n".join(lines[:_MAX_DESCRIBED])


def _without_round_brackets(persona: str) -> str:
    """Return a persona that cannot end its description and begin one of somebody else."""
    return sanitize_persona(persona).translate(_SQUARE_BRACKETS)
