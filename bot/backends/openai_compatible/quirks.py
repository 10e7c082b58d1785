"""The quirks of well-known services, by their addresses and models (docs/sources.md#openai)."""

import re

from bot.backends.chat_completions.quirks import NO_QUIRKS, Quirks
from bot.backends.openai_compatible.settings import WELL_KNOWN

# Later models take sampling parameters again while they do not reason.
_REASONING_MODELS = re.compile(r"(o[1-9](-mini|-pro)?|gpt-5(-mini|-nano|-pro)?)(-\d{4}-\d\d-\d\d)?")
_LIMIT = {"max_tokens": "max_completion_tokens"}
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop")
_OPENAI = Quirks(renamed=_LIMIT)
_OPENAI_REASONING = Quirks(renamed=_LIMIT, refused=_SAMPLING)
# Usage comes with the last chunk without being asked for; asking is an unknown field.
_MISTRAL = Quirks(
    renamed={"max_completion_tokens": "max_tokens", "seed": "random_seed"},
    refused=("stream_options",),
)


def quirks_of(base_url: str, model: str) -> Quirks:
    """Return the quirks of a model at an address; none for services that are not known."""
    if base_url == WELL_KNOWN["openai"]:
        return _OPENAI_REASONING if _REASONING_MODELS.fullmatch(model) else _OPENAI
    return _MISTRAL if base_url == WELL_KNOWN["mistral_ai"] else NO_QUIRKS
