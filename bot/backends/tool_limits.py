"""Keep tools and their results small enough for the context of a local model."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from bot.chat.prompt import Prompt
from bot.chat.tool import ToolExchange
from bot.templates.renderer import ToolUse

RESULTS_FRACTION: Final = 6  # a sixth of the context is left for calls and results
_SPECS_FRACTION: Final = 3
_BYTES_PER_TOKEN: Final = 3  # an estimate from below for most scripts
_MIN_RESULT_BYTES: Final = 120
_CUT: Final = "\n[the rest is left out]"
_log = structlog.get_logger(__name__)


def fit_tools(prompt: Prompt, context_tokens: int, special: Sequence[str]) -> ToolUse:
    """Return the tools of a prompt as far as they fit into a context.

    Tools that would take more than a third of it are not offered, and results are cut.
    """
    described = sum(len(one.description) + len(json.dumps(one.parameters)) for one in prompt.tools)
    specs = prompt.tools
    if described > context_tokens * _BYTES_PER_TOKEN // _SPECS_FRACTION:
        _log.warning("tools_too_long", model=prompt.model, characters=described)
        specs = ()
    count = sum(len(one.results) for one in prompt.tool_exchanges)
    share = context_tokens // RESULTS_FRACTION * _BYTES_PER_TOKEN // max(1, count)
    exchanges = [_cut(one, max(share, _MIN_RESULT_BYTES)) for one in prompt.tool_exchanges]
    return ToolUse(specs, exchanges, special)


def _cut(exchange: ToolExchange, max_bytes: int) -> ToolExchange:
    return replace(exchange, results=tuple(_cut_text(one, max_bytes) for one in exchange.results))


def _cut_text(text: str, max_bytes: int) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return text
    return encoded[:max_bytes].decode(errors="ignore") + _CUT
