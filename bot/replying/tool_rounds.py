"""Let a model call tools during its answer: a few rounds, each of them another request."""

from collections.abc import Sequence
from dataclasses import replace

from bot.chat.prompt import Finish, Prompt, Usage
from bot.chat.tool import UNKNOWN_TOOL, ToolExchange, ToolRecord, ToolSpec
from bot.ports import Tools
from bot.texts.text import EMPTY, Text, joined, translatable

MAX_TOOL_TOKENS = 12_000
"""The most that tools and their results add to a prompt, about."""

_MAX_ROUNDS = 4  # then the model gets no tools any more and has to answer
_MAX_CALLS_A_ROUND = 4


class ToolRounds:
    """The requests of one answer that a model reads results in.

    Nothing is stored before the answer is: if the process dies, the tools are called again, which
    is harmless because they change nothing.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._exchanges: list[ToolExchange] = []

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """What is offered."""
        return self._tools.specs

    @property
    def records(self) -> Sequence[ToolRecord]:
        return self._tools.records

    @property
    def may_call(self) -> bool:
        """Whether the model has a round left."""
        return len(self._exchanges) < _MAX_ROUNDS

    def offer(self, prompt: Prompt) -> Prompt:
        """Return the next request: with what was called before, and with tools while they last."""
        specs = tuple(self._tools.specs) if self.may_call else ()
        return replace(prompt, tools=specs, tool_exchanges=tuple(self._exchanges))

    async def run(self, text: str, finish: Finish) -> None:
        """Run the calls of a response that wrote this text; those above the limit are left out."""
        kept = finish.tool_calls[:_MAX_CALLS_A_ROUND]
        results = [await self._tools.run(call) for call in kept]
        self._exchanges.append(ToolExchange(text, kept, tuple(results), finish.attached))


def used_tools(records: Sequence[ToolRecord]) -> Text:
    """Return what readers see of the calls; empty where there were none."""
    names = ", ".join(dict.fromkeys(one.name for one in records if one.name != UNKNOWN_TOOL))
    if not names:
        return EMPTY
    return joined(["\n\n", translatable("🔧 tools used: {tools}", tools=names)], "")


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Return the tokens of several requests for one answer."""
    return Usage(
        sum(one.prompt_tokens for one in usages),
        sum(one.cached_tokens for one in usages),
        sum(one.output_tokens for one in usages),
        sum(one.written_tokens for one in usages),
    )
