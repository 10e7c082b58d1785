"""What a service takes otherwise than OpenAI's API has it; the values stand with each vendor."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Quirks:
    """How the fields of a request have to be changed for one service or model."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """What parameters are called there."""
    refused: Collection[str] = ()
    """Parameters that make it reject the request, so that they are left out."""

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a request as the service takes them."""
        renamed = {self.renamed.get(name, name): value for name, value in body.items()}
        return {name: value for name, value in renamed.items() if name not in self.refused}


NO_QUIRKS = Quirks()
