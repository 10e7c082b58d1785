"""What every embedder does to texts before, and to vectors after."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from bot.errors import SettingsError

MOST_TOKENS = 400
"""Of one text: half a second of work on one core, and small models were trained on no more."""

_MOST_CHARS = 20 * MOST_TOKENS  # only white space has longer tokens
_END_BYTES = 1 << 20


def shortened(text: str, count: Callable[[str], int]) -> str:
    """The longest beginning that has at most `MOST_TOKENS` tokens, and nothing that is no text."""
    text = text[:_MOST_CHARS].replace("\0", " ").encode(errors="replace").decode()
    if count(text) <= MOST_TOKENS:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count(text[:middle]) <= MOST_TOKENS:
            fits = middle
        else:
            too_long = middle
    return text[:fits]


def fingerprint(path: Path) -> str:
    """A name for a model file that is the same on every machine.

    Its size and both its ends tell models apart; to read the whole of it would take seconds.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            seen = hashlib.sha256(file.read(_END_BYTES))
            file.seek(max(0, size - _END_BYTES))
            seen.update(file.read())
    except OSError as error:
        raise SettingsError(f"TROUPE_EMBEDDING__MODEL_PATH: {path}: {error.strerror}") from None
    return f"{path.stem}:{size}:{seen.hexdigest()[:16]}"
