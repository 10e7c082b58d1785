"""Replace what databases cannot store in texts."""

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def make_storable(text: str) -> str:
    """Replace NUL and lone surrogates, which JSON can spell, by U+FFFD.

    PostgreSQL stores no NUL and UTF-8 encodes no surrogates. The two halves of a surrogate pair
    become the character that they encode.
    """
    if "\0" not in text and text.isascii():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def make_json_storable(value: Any) -> Any:
    """Replace lone surrogates in all texts of a JSON value."""
    return json.loads(make_storable(json.dumps(value, ensure_ascii=False)))


class SurrogateJoiner:
    """Joins the pieces of a stream that may end in the first half of a surrogate pair."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the text so far without a trailing half, which waits for the next piece."""
        if not self._held and not _SURROGATE.search(text):
            return text
        text = self._held + text
        self._held = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        whole = text[: len(text) - len(self._held)]
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def flush(self) -> str:
        """Return what stands for a half that nothing followed."""
        held, self._held = self._held, ""
        return "\ufffd" if held else ""
