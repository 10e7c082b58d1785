"""Test that the token usage of an answer is counted."""

from prometheus_client import REGISTRY

from bot.chat.prompt import Finish, FinishReason, Message, Prompt, Usage
from bot.replying.generate import generate_answer
from tests.fakes import FakeBackend, FakeClock

PROMPT = Prompt((Message("user", "hello"),), "m", "channel")
COUNTERS = ("prompt", "cached_prompt", "answer")


def counted() -> list[float]:
    names = (f"troupe_{counter}_tokens_total" for counter in COUNTERS)
    return [REGISTRY.get_sample_value(name) or 0.0 for name in names]


async def test_prompt_cached_and_answer_tokens_are_counted() -> None:
    before = counted()

    for usage in (Usage(100, 0, 7), Usage(120, 105, 3)):
        await generate_answer(
            FakeBackend(["yes", Finish(FinishReason.STOP, usage)]),
            PROMPT,
            lambda _: None,
            lambda _: None,
            FakeClock(),
        )

    after = counted()
    assert [now - then for now, then in zip(after, before, strict=True)] == [220, 105, 10]
