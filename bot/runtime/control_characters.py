"""Remove what would control a terminal from texts that others wrote."""

import re

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def strip_control_characters(text: str) -> str:
    """Remove all control characters (C0, C1 and DEL) but line breaks and tabs."""
    return _CONTROL_CHARACTERS.sub("", text)
