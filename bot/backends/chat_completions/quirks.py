"""How services deviate from OpenAI's API; each vendor's package defines its own."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from bot.chat.prompt import ALL_CAPABILITIES, TemplateCapabilities
from bot.value_class import value_class


@value_class
class Quirks:
    """How requests to a service or model must differ from OpenAI's API."""

    parameter_names: Mapping[str, str] = field(default_factory=dict)
    refused_parameters: Collection[str] = ()
    accepts_names: bool = False
    capabilities: TemplateCapabilities = ALL_CAPABILITIES
    """The role sequences that the model accepts; other prompts are rewritten to match."""
    continuation_fields: tuple[Mapping[str, object], Mapping[str, object]] | None = None
    """Extra fields of the last message and of the request that make a model continue that message.
    None if the service's models cannot continue an answer."""
    marks_cached_prefix: bool = False
    """Whether requests must mark how much of the prompt the service should cache."""

    def adapt_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        fields = {self.parameter_names.get(name, name): value for name, value in body.items()}
        return {name: fields[name] for name in fields if name not in self.refused_parameters}


NO_QUIRKS = Quirks()
