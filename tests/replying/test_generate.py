"""Test the token usage of answers, and the continuation of cut-off answers."""

from collections.abc import Mapping

import pytest
from prometheus_client import REGISTRY

from bot.chat.prompt import Finish, FinishReason, Message, Prompt, ToolCall, ToolSpec, Usage
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.replying.filters import RepeatedStartFilter
from bot.replying.generate import GeneratedAnswer, generate_answer
from bot.tools import Tool, Toolbox
from tests.fakes import FakeBackend, FakeClock, FakeRemoteBackend, ScriptStep

COUNTERS = ("prompt", "cached_prompt", "answer")


def token_counts() -> list[float]:
    names = (f"troupe_{counter}_tokens_total" for counter in COUNTERS)
    return [REGISTRY.get_sample_value(name) or 0.0 for name in names]


STORY = Prompt((Message("user", "a story"),), "m", "channel")
CUT = BackendInterrupted("reset", can_continue=True)


async def never() -> bool:
    return False


async def generate(backend: FakeBackend, **options: object) -> tuple[GeneratedAnswer, str]:
    shown: list[str] = []
    answer = await generate_answer(
        backend,
        STORY,
        shown.append,
        lambda _: None,
        FakeClock(),
        **options,  # type: ignore[arg-type]
    )
    return answer, "".join(shown)


async def test_prompt_cached_and_answer_tokens_are_counted() -> None:
    before = token_counts()

    for usage in (Usage(100, 0, 7), Usage(120, 105, 3)):
        await generate(FakeBackend(["yes", Finish(FinishReason.STOP, usage)]))

    after = token_counts()
    assert [now - then for now, then in zip(after, before, strict=True)] == [220, 105, 10]


@pytest.mark.parametrize(
    "rest",
    [
        ["a time", "."],
        [" a time."],
        ["Once upon", " a time."],  # services that send the beginning again
        ["Once", " ", "upon a", " time."],
        [*"Once upon a time."],
    ],
)
async def test_cut_off_stream_continues_after_the_text_so_far(rest: list[str]) -> None:
    backend = FakeRemoteBackend(["Once ", "upon ", CUT], rest)
    answer, shown = await generate(backend)
    assert (answer.text, shown) == ("Once upon a time.",) * 2
    assert answer.reason == "stop"
    assert [prompt.begun for prompt in backend.prompts] == ["", "Once upon"]
    assert answer.interrupted_text == "Once upon "


@pytest.mark.parametrize(
    "second", [[CUT], ["a ", CUT], [BackendUnavailable("no budget")]], ids=["cut", "text", "none"]
)
async def test_answer_cut_off_twice_ends_with_the_text_so_far(second: list[ScriptStep]) -> None:
    backend = FakeRemoteBackend(["Once upon ", CUT], second)
    answer, shown = await generate(backend)
    assert answer.reason is None
    assert shown.strip() == answer.text
    assert answer.text in {"Once upon", "Once upon a"}
    assert len(backend.prompts) == 2


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (FakeBackend(["Once", CUT]), {}),
        (FakeRemoteBackend(["Once", BackendInterrupted("too slow")]), {}),
        (FakeRemoteBackend(["Once", CUT]), {"may_continue": never}),
    ],
    ids=["the model cannot", "it timed out", "the budget is used up"],
)
async def test_cut_off_stream_is_not_continued_if_impossible_or_not_allowed(
    backend: FakeBackend, options: dict[str, object]
) -> None:
    answer, _ = await generate(backend, **options)
    assert (answer.text, answer.reason) == ("Once", None)
    assert len(backend.prompts) == 1


@pytest.mark.parametrize("text", ["A", "Aha. A", "", "Aha. "])
def test_continuation_that_only_starts_like_the_text_so_far_is_kept(text: str) -> None:
    repeated = RepeatedStartFilter("Aha. A")
    shown = repeated.feed(text) + repeated.finish()
    assert shown == ("" if text == "Aha. A" else text)


async def add(_arguments: Mapping[str, object]) -> str:
    return "4"


ADD = Tool(ToolSpec("add", "Add numbers.", {}), add)


async def test_answer_after_a_tool_call_may_begin_like_the_text_that_was_cut_off() -> None:
    calls = Finish(FinishReason.STOP, tool_calls=(ToolCall("1", "add", "{}"),))
    backend = FakeRemoteBackend(["Let me see", CUT], [calls], ["Let me see: 4."])
    answer, _ = await generate(backend, tools=Toolbox([ADD], FakeClock()))
    assert answer.text == "Let me see\n\nLet me see: 4."
