"""Test that a fallback model answers when a preset's model fails, and who is informed."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Finish, FinishReason, ReasoningDelta
from bot.errors import BackendInterrupted, BackendUnavailable, Refused
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.turn.limits.rate_limits import NoticeLimiter
from bot.turn.limits.refusals import OperatorNotices
from tests.checkout import CHECKOUT
from tests.fakes import FakeBackend, FakeClock, FakePrivateChats, FakeSurface, ScriptStep
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk, event, said, thinking
from tests.turn.setup import CHAT, Setup

FALLBACK = {"fallbacks": [{"provider": "q", "model": "small"}]}


async def test_fallback_answers_when_the_first_model_fails(database: Database) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    setup = Setup(database, backend=away, fallback=other, preset=FALLBACK)
    await setup.say("hello")
    (_, receipt), *_ = await Receipts(database).find_for_last_message(CHAT)
    assert setup.texts[0] == "Hi."
    assert (len(away.prompts), other.prompts[0].model) == (1, "small")
    assert (receipt.provider, receipt.prompt.model) == ("q", "small")


async def test_channel_is_notified_of_a_fallback_once_in_six_hours(database: Database) -> None:
    away = FakeBackend([BackendUnavailable("p: SECRET", notice="The key is wrong.")])
    clock = FakeClock()
    other = FakeBackend(["Hi."])
    setup = Setup(database, backend=away, fallback=other, preset=FALLBACK, clock=clock)
    await setup.say("hello", "hello again")
    note = (
        "⚠ For the admins here: the model of nora failed (“The key is wrong.”),"
        " so another model is answering. Details: /settings why"
    )
    assert setup.texts == ["Hi.", note, "Hi."]
    await clock.advance(7 * 3600)
    await setup.say("still there?")
    assert setup.texts == ["Hi.", note, "Hi.", "Hi.", note]


async def test_admins_can_see_that_a_fallback_model_answered(database: Database) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    setup = Setup(database, backend=away, fallback=other, preset=FALLBACK)
    await setup.say("hello", "/settings why")
    assert setup.texts[-1].splitlines()[-1] == "nora: q/small answered in place of p/m"


async def test_fallback_is_not_used_for_an_interrupted_answer(database: Database) -> None:
    first = FakeBackend(["Once upon ", BackendInterrupted("reset")])
    other = FakeBackend(["Hi."])
    setup = Setup(database, backend=first, fallback=other, preset=FALLBACK)
    await setup.say("a story")
    assert setup.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert other.prompts == []


CONTEXT = 1000
ROLL = json.dumps({"throw": "1d6"})


class SmallModel:
    """A model with a context of 1,000 tokens, each of which is shorter than estimates expect."""

    def __init__(self, error: str, status: int) -> None:
        self.error, self.status = error, status
        self.rejections = 0

    def reply(self, body: Mapping[str, Any]) -> Script:
        tokens = sum(len(one["content"]) for one in body["messages"]) // 2
        if tokens + body.get("max_tokens", 0) <= CONTEXT:
            return Script([said("Fine.") + STOP + DONE])
        self.rejections += 1
        error = self.error.format(context=CONTEXT, tokens=tokens, output=body.get("max_tokens", 0))
        if self.status == 200:
            return Script([event({"error": {"message": error, "code": 400}})])
        return Script([json.dumps({"error": {"message": error}}).encode()], status=self.status)


@pytest.mark.parametrize("limit", [{}, {"max_output_tokens": 200}])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("This model's maximum context length is {context} tokens. However, your messages resulted "
         "in {tokens} tokens.", 400),
        ("This model's maximum context length is {context} tokens. However, your messages resulted "
         "in {tokens} tokens.", 200),
        ("'max_tokens' or 'max_completion_tokens' is too large: {output}. This model's maximum "
         "context length is {context} tokens and your request has {tokens} input tokens.", 400),
        ("the request exceeds the available context size ({context} tokens), increase it", 400),
        ("the input length exceeds the context length", 400),
        ("Context size has been exceeded.", 500),
    ],
)  # fmt: skip
async def test_messages_are_answered_even_if_the_context_is_full(
    database: Database, error: str, status: int, limit: dict[str, object]
) -> None:
    model = SmallModel(error, status)
    async with FakeOpenAI() as service:
        service.replies = model.reply
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=service.base_url), "p")
        setup = Setup(database, backend=backend, preset=limit)  # type: ignore[arg-type]
        questions = [f"{number} {'word ' * 40}" for number in range(16)]
        for question in questions:
            await setup.say(question)
        await backend.close()
    assert setup.texts == ["Fine."] * len(questions)
    assert 1 <= model.rejections <= 3
    sent = service.log[-1]["body"]["messages"]
    assert sent[-1]["content"].startswith("15 ")
    assert not any(one["content"].startswith("0 ") for one in sent)


async def test_results_of_a_tool_push_old_turns_out_of_the_context(database: Database) -> None:
    error = "This model's maximum context length is {context} tokens."
    model = SmallModel(error, 400)

    def reply(body: Mapping[str, Any]) -> Script:
        messages = [one for one in body["messages"] if one["content"]]
        call = {"index": 0, "id": "a", "function": {"name": "dice", "arguments": ROLL}}
        if messages[-1]["role"] == "user" and "roll" in messages[-1]["content"]:
            return Script([chunk(tool_calls=[call]) + chunk(finish="tool_calls") + DONE])
        return model.reply({"messages": messages})

    async with FakeOpenAI() as service:
        service.replies = reply
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=service.base_url), "p")
        setup = Setup(database, backend=backend, preset={"tools": ["dice"]})  # type: ignore[arg-type]
        await setup.say("word " * 380, "please roll", "and now?")
        await backend.close()
    assert model.rejections == 1
    assert setup.texts == ["Fine.", "Fine.\n\n🔧 tools used: dice", "Fine."]


@asynccontextmanager
async def setup_on(
    database: Database, replies: Callable[[Mapping[str, Any]], Script], preset: Mapping[str, object]
) -> AsyncIterator[tuple[Setup, FakeOpenAI]]:
    """Return a worker whose model server gives these replies, and the server."""
    async with FakeOpenAI() as service:
        service.replies = replies
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=service.base_url), "p")
        yield Setup(database, backend=backend, preset=preset), service  # type: ignore[arg-type]
        await backend.close()


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize(
    "preset",
    [
        {"max_output_tokens": 250},
        {"parameters": {"max_tokens": 250}},
        {"parameters": {"max_completion_tokens": 250}},
        {},
    ],
)
async def test_output_limit_does_not_count_thoughts(
    database: Database, preset: dict[str, object], field: str
) -> None:
    replies = partial(thinking, thoughts=600, field=field)
    async with setup_on(database, replies, preset) as (setup, service):
        await setup.say("hello", "again")
    limits = [one["body"].keys() & {"max_tokens", "max_completion_tokens"} for one in service.log]
    assert setup.texts == ["Hi there.", "Hi there."]
    assert [len(each) for each in limits] == ([1, 0, 0] if preset else [0, 0])


async def test_visible_answer_of_a_thinking_model_is_limited(database: Database) -> None:
    words = [f"word{n} " for n in range(90)]
    spent: list[ScriptStep] = [ReasoningDelta("hm"), Finish(FinishReason.LENGTH)]
    backend = FakeBackend(spent, [ReasoningDelta("hm"), *words])
    setup = Setup(database, backend=backend, preset={"max_output_tokens": 20})
    await setup.say("hello")
    answer, mark = setup.texts[0].split("\n\n")
    assert 5 < len(answer.split()) < 20
    assert mark.startswith("⚠ (cut off at the length limit")


async def test_error_for_an_empty_answer_suggests_a_remedy(database: Database) -> None:
    def replies(body: Mapping[str, Any]) -> Script:
        return thinking({**body, "max_tokens": 100}, thoughts=300)

    async with setup_on(database, replies, {"max_output_tokens": 250}) as (setup, _):
        await setup.say("hello")
    assert "on thinking" in setup.texts[0]
    assert "max_output_tokens" in setup.texts[0]


def test_shipped_presets_set_no_output_limit() -> None:
    for path in (CHECKOUT / "presets").glob("*.json"):
        preset = json.loads(path.read_text(encoding="utf-8"))
        assert not preset.keys() & {"max_output_tokens", "max_tokens"}, path
        assert not preset["parameters"].keys() & {"max_tokens", "max_completion_tokens"}, path


AWAY = BackendUnavailable("away", notice="The key is wrong.")


def operator_notices(clock: FakeClock, surface: FakeSurface) -> OperatorNotices:
    """Return notices of model failures, which operators get on this surface."""
    notices = NoticeLimiter(InProcessRateLimits(clock))
    chats = {"telegram": FakePrivateChats()}
    return OperatorNotices(notices, ["telegram:7", "discord:8"], {"telegram": surface}, chats)


def make_setup(database: Database, clock: FakeClock, surface: FakeSurface) -> Setup:
    """Return a worker whose first model is down and whose fallback answers."""
    return Setup(
        database,
        backend=FakeBackend(*[[AWAY]] * 4),
        fallback=FakeBackend(*[["Hi."]] * 4),
        preset=FALLBACK,
        clock=clock,
        operator_notices=operator_notices(clock, surface),
    )


async def test_operators_are_notified_of_model_failures_at_most_once_every_six_hours(
    database: Database,
) -> None:
    clock, surface = FakeClock(), FakeSurface()
    setup = make_setup(database, clock, surface)
    for _ in range(3):
        await setup.say("hello")
    assert setup.texts == ["Hi.", "Hi.", "Hi."], "nobody else is told"
    [note] = surface.messages.values()
    assert note.startswith("telegram:5: ")
    assert "The key is wrong." in note
    await clock.advance(7 * 3600.0)
    await setup.say("hello")
    assert len(surface.messages) == 2


async def test_channel_is_notified_if_the_operator_has_blocked_the_bot(database: Database) -> None:
    surface = FakeSurface()
    surface.fail_next("send", Refused("bot was blocked by the user"))
    setup = make_setup(database, FakeClock(), surface)
    await setup.say("hello")
    assert len(setup.texts) == 2
