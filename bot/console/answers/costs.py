"""Say what an answer would have cost with other models whose prices are set."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bot.backends.spec import FREE, ProviderSettings
from bot.chat.receipt import Receipt
from bot.chat.usage import format_cost
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.draft.token_shares import prompt_tokens

_CHARS_PER_TOKEN = 3  # of an answer that the provider did not count
_ANY = "*"


@frozen_dataclass
class OtherCost:
    """The cost of the same tokens elsewhere."""

    model: str
    """The provider and its model; "*" is any model without a price of its own."""
    cost: str


def costs_elsewhere(
    receipt: Receipt, providers: Mapping[str, ProviderSettings]
) -> Sequence[OtherCost]:
    """Return what as many tokens cost at every other model with a price, the cheapest first.

    What came from a cache counts as cached there as well, where that has a price of its own.
    """
    usage = replace(receipt.usage, prompt_tokens=prompt_tokens(receipt))
    if not usage.output_tokens:
        written = receipt.answer + receipt.thoughts
        usage = replace(usage, output_tokens=math.ceil(len(written) / _CHARS_PER_TOKEN))
    own = (receipt.provider, receipt.charge.model or receipt.prompt.model)
    costs = {
        f"{provider}/{name}": price.cost(usage)
        for provider, settings in providers.items()
        for model, price in settings.prices.items()
        if (settings.model or price != FREE)  # what runs here and was never set up costs nothing
        if (name := _name(model, settings)) and (provider, name) != own
    }
    return [OtherCost(name, format_cost(cost)) for name, cost in sorted(costs.items(), key=_cost)]


def _cost(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]


def _name(model: str, settings: ProviderSettings) -> str:
    """Return which model a price is for: "*" means the configured one, if no other price does."""
    if model != _ANY or settings.model is None or settings.model in settings.prices:
        return model
    return settings.model
