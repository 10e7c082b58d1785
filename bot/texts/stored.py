"""Texts that are stored in English, in receipts and logs of decisions, and translated when shown.

Most are whole sentences of the catalogue. Those with values are made by a `StoredPattern`, which
finds the values again in what it has written.
"""

import re
from string import Formatter

from bot.texts.text import Text, is_translated

_MAX_CHARS = 2000

_NESTED = frozenset({"found", "reason"})
"""Values that are stored texts themselves; all others are words of people, or figures."""


class StoredPattern:
    """A sentence with a `{name}` for each value; `marked` stands around it for the catalogue."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        parts = [*Formatter().parse(pattern)]
        self.literal_chars = sum(len(literal) for literal, *_ in parts)
        expression = "".join(
            re.escape(literal) + (f"(?P<{name}>.*?)" if name else "") for literal, name, *_ in parts
        )
        self._expression = re.compile(expression, re.DOTALL)
        _patterns.append(self)
        _patterns.sort(key=lambda one: one.literal_chars, reverse=True)

    def with_values(self, **values: object) -> str:
        """Return the English sentence."""
        return self._pattern.format_map(values)

    def read(self, text: str) -> Text | None:
        """Return a sentence that was made by this pattern as a text; None if it is another one."""
        found = self._expression.fullmatch(text)
        if found is None:
            return None
        values = {
            name: looked_up(value) if name in _NESTED else value
            for name, value in found.groupdict().items()
        }
        return Text(self._pattern, values)


_patterns: list[StoredPattern] = []  # the most particular first


def looked_up(text: str) -> Text:
    """Return a text that was stored in English; known ones are translated."""
    whole = Text(text.replace("{", "{{").replace("}", "}}"), {})
    if len(text) > _MAX_CHARS or is_translated(text):
        return whole
    readings = (one.read(text) for one in _patterns)
    return next((one for one in readings if one is not None), whole)
