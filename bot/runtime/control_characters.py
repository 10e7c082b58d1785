"""Remove or escape what would control a terminal in texts that others wrote."""

import re

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def strip_control_characters(text: str) -> str:
    """Remove all control characters (C0, C1 and DEL) but line breaks and tabs."""
    return _CONTROL_CHARACTERS.sub("", text)


def escape_control_characters(text: str) -> str:
    r"""Write control characters but line breaks and tabs as in Python: ESC is `\x1b`."""
    return _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)
