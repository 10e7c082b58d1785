"""Deviations of services from OpenAI's API; the values are in each vendor's package."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from bot.chat.prompt import ALL_CAPABILITIES, Capabilities
from bot.value_class import value_class


@value_class
class Quirks:
    """How requests for one service or model must differ from the standard."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    refused: Collection[str] = ()
    has_names: bool = False
    accepts: Capabilities = ALL_CAPABILITIES
    """The sequences of roles that it accepts; other messages are rewritten."""
    continuation: tuple[Mapping[str, object], Mapping[str, object]] | None = None
    """Fields of the last message, which begins the answer, and of the request, by which it is asked
    to continue; None: its models cannot continue answers."""
    marks_prefix: bool = False
    """Whether a prefix is cached only up to where the request marks it."""

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        renamed = {self.renamed.get(name, name): value for name, value in body.items()}
        return {name: value for name, value in renamed.items() if name not in self.refused}


NO_QUIRKS = Quirks()
