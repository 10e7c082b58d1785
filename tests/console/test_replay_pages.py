"""Asking a model again for a stored answer, from the page and over the API."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bot.chat.access import Scope
from bot.chat.answers import StoredAnswer
from bot.chat.prompt import FinishReason, Message, Prompt, Usage
from bot.chat.usage import AnswerCharge
from bot.console.operator_requests import OperatorAnswer
from bot.errors import BackendUnavailable
from bot.replying.generate import GeneratedAnswer
from tests.support.console import ConsoleUnderTest, MakeParts, answer_pages, store_answers
from tests.support.store import RECEIPT

SECRET = "sk-canary"
MADE = OperatorAnswer(
    "other",
    RECEIPT.prompt,
    GeneratedAnswer(f"Hi <b>{SECRET}", FinishReason.LENGTH, Usage(), 0.25, 1.5),
    Usage(130, output_tokens=7),
    AnswerCharge(model="m2", cost=2_500),
)


@dataclass
class Model:
    """Answers to every replay, or fails."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    fails: bool = False
    prompt: Prompt = RECEIPT.prompt
    """What it says that it was sent."""

    async def replay(self, _: StoredAnswer, preset: str, draft: str) -> OperatorAnswer:
        self.asked.append((preset, draft))
        if self.fails:
            raise BackendUnavailable("503 from the service", "The model is away.")
        return replace(MADE, prompt=self.prompt)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def make_parts(tmp_path: Path, model: Model) -> MakeParts:
    return lambda database: [answer_pages(database, tmp_path, model.replay)]


async def replay_by_form(console: ConsoleUnderTest, **fields: str) -> tuple[int, str]:
    answer = await console.send_form("/answers/1/replay", "/answers/1", **fields)
    return answer.status, await answer.text()


async def test_replay_stands_beside_the_stored_answer(
    console: ConsoleUnderTest, model: Model
) -> None:
    await store_answers(console, RECEIPT)
    await console.log_in()

    status, page = await replay_by_form(console, preset="")
    await replay_by_form(console, preset="nils")

    assert status == 200
    assert model.asked == [("", ""), ("nils", "")]
    for text in ("Hi 🙂", "Hi &lt;b&gt;", "other/m2", "$0.0025", "cut off at the limit"):
        assert text in page, text
    assert SECRET not in page
    assert "What differs in the prompt" not in page


async def test_prompt_of_a_draft_stands_beside_the_stored_one(
    console: ConsoleUnderTest, model: Model
) -> None:
    await store_answers(console, RECEIPT)
    await console.log_in()
    first, *others = RECEIPT.prompt.messages
    composed = (Message("system", f"Be Nils. {SECRET}"), *others)
    model.prompt = replace(RECEIPT.prompt, messages=composed)

    _, page = await replay_by_form(console, draft="nora")

    assert model.asked == [("", "nora")]
    assert first.content.startswith("Be Nora.")
    assert "<del>Nora</del><ins>Nils</ins>" in page
    assert SECRET not in page


async def test_api_replays_with_its_scope_and_tells_why_it_failed(
    console: ConsoleUnderTest, model: Model
) -> None:
    await store_answers(console, replace(RECEIPT, answer="before"))
    path, body = "/api/v1/answers/1/replay", {"preset": ""}

    refused = await console.client.post(path, json=body, headers=await console.bearer(Scope.READ))
    operator = await console.bearer(Scope.OPERATE)
    made = await console.client.post(path, json=body, headers=operator)
    missing = await console.client.post("/api/v1/answers/9/replay", json=body, headers=operator)
    model.fails = True
    failed = await console.client.post(path, json=body, headers=operator)

    assert (refused.status, made.status, missing.status, failed.status) == (403, 200, 404, 502)
    result = await made.json()
    assert result["cost"] == 0.0025
    assert [one["role"] for one in result["messages"]] == [
        one.role for one in RECEIPT.prompt.messages
    ]
    assert await failed.json() == {"error": "The model is away."}
