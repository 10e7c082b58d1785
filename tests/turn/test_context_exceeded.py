"""A conversation that outgrows the model's context goes on without its oldest turns."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.storage.database import Database
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk, event, said
from tests.turn.setup import Setup

CONTEXT = 1000
ROLL = json.dumps({"throw": "1d6"})


class SmallModel:
    """Reads 1,000 tokens of two letters each, which no estimate expects."""

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
async def test_every_message_is_answered_behind_a_full_context(
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


async def test_results_of_a_tool_that_fill_the_context_push_out_old_turns(
    database: Database,
) -> None:
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
