"""Who people say they are (`/me`), in a form that can stand in a prompt and forge nothing."""

import unicodedata
from collections.abc import Iterable, Mapping

MAX_PERSONA_CHARS = 500
MAX_SPEAKERS_WITH_PERSONA = 16  # who spoke before so many others is not in the talk any more
_MAX_PEOPLE = 8  # of those who spoke last


def sanitize_persona(text: str) -> str:
    """One line without unseen signs: no other speaker's line and no hidden order can be in it."""
    kept = (
        " " if sign.isspace() else sign
        for sign in unicodedata.normalize("NFC", text)
        if sign.isspace() or unicodedata.category(sign) not in {"Cc", "Cf", "Cs", "Co", "Cn"}
    )
    line = " ".join("".join(kept).split())
    return line if len(line) <= MAX_PERSONA_CHARS else line[: MAX_PERSONA_CHARS - 1] + "…"


def describe_speakers(
    speakers: Iterable[str], labels: Mapping[str, str], personas: Mapping[str, str]
) -> str:
    """Tell who the speakers (ids, newest first) are, a line each; empty if nobody said so."""
    told = [
        f"({labels[one]} says of themselves: {sanitize_persona(personas[one])})"
        for one in dict.fromkeys(speakers)
        if personas.get(one)
    ]
    return "\n".join(told[:_MAX_PEOPLE])
