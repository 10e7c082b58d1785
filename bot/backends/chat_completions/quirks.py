"""How services deviate from OpenAI's API; each vendor's package has its values."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from bot.chat.prompt import ALL_CAPABILITIES, TemplateCapabilities
from bot.value_class import value_class


@value_class
class Quirks:
    """How requests to a service or model must differ from OpenAI's API."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    refused: Collection[str] = ()
    accepts_names: bool = False
    accepts: TemplateCapabilities = ALL_CAPABILITIES
    """The role sequences that the model accepts; other prompts are rewritten to match."""
    continuation: tuple[Mapping[str, object], Mapping[str, object]] | None = None
    """Extra fields of the last message and of the request that make a model continue that message.
    None: its models cannot continue an answer."""
    marks_prefix: bool = False
    """Whether requests must mark the end of the part of the prompt that the service caches."""

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        renamed = {self.renamed.get(name, name): value for name, value in body.items()}
        return {name: value for name, value in renamed.items() if name not in self.refused}


NO_QUIRKS = Quirks()
