"""Test that the token usage of an answer is counted."""

from collections.abc import AsyncGenerator

from prometheus_client import REGISTRY
from typing_extensions import override

from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, Message, Prompt, Usage
from bot.ports import Backend
from bot.replying.generate import generate_answer
from tests.fakes import FakeClock

PROMPT = Prompt((Message("user", "hello"),), "m", "channel")
COUNTERS = ("prompt", "cached_prompt", "answer")


class FixedUsageBackend(Backend):
    """Generates one word and reports this usage."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        yield Delta("yes")
        yield Finish(FinishReason.STOP, self._usage)

    @override
    async def check(self) -> str:
        return "fixed usage"

    @override
    async def close(self) -> None:
        pass


def counted() -> list[float]:
    names = (f"troupe_{counter}_tokens_total" for counter in COUNTERS)
    return [REGISTRY.get_sample_value(name) or 0.0 for name in names]


async def test_prompt_cached_and_answer_tokens_are_counted() -> None:
    before = counted()

    for usage in (Usage(100, 0, 7), Usage(120, 105, 3)):
        await generate_answer(
            FixedUsageBackend(usage), PROMPT, lambda _: None, lambda _: None, FakeClock()
        )

    after = counted()
    assert [now - then for now, then in zip(after, before, strict=True)] == [220, 105, 10]
