"""Replays of stored answers, from the page and over the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bot.chat.access import ApiScope
from bot.chat.answers import StoredAnswer
from bot.chat.prompt import FinishReason, Message, Prompt, Usage
from bot.chat.receipt import Timings
from bot.chat.usage import AnswerCharge
from bot.console.routes import RouteGroup
from bot.errors import BackendUnavailable
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.usage import UsageLog
from tests.support.console import ConsoleUnderTest, MakeParts, answer_pages, store_answers
from tests.support.store import RECEIPT

SECRET = "sk-canary"
MADE = replace(
    RECEIPT,
    provider="other",
    answer=f"Hi <b>{SECRET}",
    reason=FinishReason.LENGTH,
    usage=Usage(130, output_tokens=7),
    timings=Timings(0.0, 0.25, 1.5),
    charge=AnswerCharge(model="m2", cost=2_500),
)


@dataclass
class Model:
    """A model that answers every replay, or fails."""

    log: UsageLog | None = None
    asked: list[tuple[str, str, Mapping[str, object]]] = field(default_factory=list)
    fails: bool = False
    prompt: Prompt = RECEIPT.prompt
    """The prompt that it reports as sent."""

    async def replay(
        self, answer: StoredAnswer, preset: str, draft: str, parameters: Mapping[str, object]
    ) -> StoredAnswer:
        self.asked.append((preset, draft, parameters))
        if self.fails:
            raise BackendUnavailable("503 from the service", "The model is away.")
        assert self.log is not None
        made = replace(MADE, prompt=self.prompt)
        return await self.log.record_replay(answer.conversation, made)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def make_parts(tmp_path: Path, model: Model) -> MakeParts:
    def make(database: Database) -> list[RouteGroup]:
        model.log = UsageLog(database, SystemClock())
        return [answer_pages(database, tmp_path, model.replay)]

    return make


async def replay_by_form(console: ConsoleUnderTest, **fields: str) -> tuple[int, str]:
    answer = await console.send_form("/answers/1/replay", "/answers/1", **fields)
    return answer.status, await answer.text()


async def test_replay_is_stored_with_its_own_number_next_to_the_original(
    console: ConsoleUnderTest, model: Model
) -> None:
    await store_answers(console, RECEIPT)
    await console.log_in()

    answer = await console.send_form("/answers/1/replay", "/answers/1", use="")
    page = await answer.text()
    await replay_by_form(console, use="model:nils", parameters='{"temperature": 0.2}')

    assert answer.url.path == "/answers/2/compare/1"
    assert model.asked == [("", "", {}), ("nils", "", {"temperature": 0.2})]
    for text in ("Hi <del>🙂</del>", "&lt;", "other/m2", "$0.0025"):
        assert text in page, text
    assert SECRET not in page
    assert await console.page("/answers/2/compare/1") == page
    assert "cut off at the limit" in await console.page("/answers/2")
    assert [one["number"] for one in (await console.read("/answers"))["answers"]] == [1]
    status, _ = await replay_by_form(console, use="", parameters="[" * 1000)
    assert status == 422


async def test_draft_prompt_is_shown_next_to_the_stored_prompt(
    console: ConsoleUnderTest, model: Model
) -> None:
    await store_answers(console, RECEIPT)
    await console.log_in()
    first, *others = RECEIPT.prompt.messages
    composed = (Message("system", f"Be Nils. {SECRET}"), *others)
    model.prompt = replace(RECEIPT.prompt, messages=composed)

    _, page = await replay_by_form(console, use="draft:nora")

    assert model.asked == [("", "nora", {})]
    assert first.content.startswith("Be Nora.")
    assert "<del>Nora</del>" in page
    assert "<ins>Nils</ins>" in page
    assert SECRET not in page


async def test_api_replay_needs_its_scope_and_reports_why_it_failed(
    console: ConsoleUnderTest, model: Model
) -> None:
    await store_answers(console, replace(RECEIPT, answer="before"))
    path, body = "/api/v1/answers/1/replay", {"preset": ""}

    refused = await console.client.post(
        path, json=body, headers=await console.bearer(ApiScope.READ)
    )
    operator = await console.bearer(ApiScope.OPERATE)
    made = await console.client.post(path, json=body, headers=operator)
    missing = await console.client.post("/api/v1/answers/9/replay", json=body, headers=operator)
    model.fails = True
    failed = await console.client.post(path, json=body, headers=operator)

    assert (refused.status, made.status, missing.status, failed.status) == (403, 200, 404, 502)
    result = await made.json()
    assert result["cost"] == 0.0025
    assert result["number"] == 2
    assert result["answer"].startswith("Hi <b>")
    assert await failed.json() == {"error": "The model is away."}
