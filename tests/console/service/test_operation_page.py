"""Breakers, waits, models in memory, errors with their steps, trials, and the live page."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import pytest
from typing_extensions import override

from bot.chat.access import Scope
from bot.chat.operation import ModelHealth, ModelInMemory
from bot.chat.prompt import Prompt, PromptToken
from bot.chat.session import error_id_of
from bot.console import live_events as live_fragment
from bot.console.operation import ProviderRow
from bot.errors import BackendUnavailable
from bot.ports import LocalBackend
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.inbox import SqlInbox
from bot.storage.operation import SqlMessageNotes
from bot.telemetry.logs import RecentEvents, describe_failure
from tests.console.conftest import ConsoleUnderTest, MakeParts
from tests.console.playground.conftest import hidden_fields
from tests.console.service.operation import operation_page
from tests.fakes import FakeBackend, FakeRemoteBackend
from tests.samples import make_incoming
from tests.waiting import PATIENCE_SECONDS

CLOCK = SystemClock()
TURN = "telegram:5:1"
PROVIDERS = [
    ProviderRow(name="remote", kind="openai", model="m", presets=["nora"]),
    ProviderRow(name="local", kind="llama_cpp", model=None, presets=["lan"]),
]


class WatchedBackend(FakeRemoteBackend):
    health = (ModelHealth("good", False, 9, 1), ModelHealth("bad", True, 0, 0))


class LoadedBackend(FakeBackend, LocalBackend):
    @override
    def is_sample(self, model: str) -> bool:
        return False

    @override
    async def preload(self, model: str) -> None:
        """Nothing takes time here."""

    @override
    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        return ()

    @override
    def models_in_memory(self) -> Sequence[ModelInMemory]:
        return [ModelInMemory("small", 4, 1, 3, 2)]


@dataclass
class Parts:
    """What the page shows."""

    events: RecentEvents = field(default_factory=RecentEvents)
    rate_limits: InProcessRateLimits = field(default_factory=lambda: InProcessRateLimits(CLOCK))
    answers: dict[str, str] = field(default_factory=dict)

    async def try_provider(self, name: str) -> str:
        if name not in self.answers:
            raise BackendUnavailable("refused, with the key sk-canary")
        return self.answers[name]

    def log(self, level: str, event: str, turn: str = TURN, **details: object) -> None:
        at = "2026-11-22T20:00:00.123456Z"
        self.events(
            None, level, {"event": event, "level": level, "turn": turn, "timestamp": at, **details}
        )


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def make_parts(parts: Parts) -> MakeParts:
    return lambda database: [
        operation_page(
            database,
            providers=PROVIDERS,
            backends={"remote": WatchedBackend(), "local": LoadedBackend()},
            waiting={"remote": 3},
            rate_limits=parts.rate_limits,
            events=parts.events,
            try_provider=parts.try_provider,
            clock=CLOCK,
        )
    ]


async def test_state_names_breakers_models_and_waits(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await parts.rate_limits.refuse_calls("telegram:-7 send", 500)
    await console.log_in()

    answer = await console.client.get("/api/v1/operation", headers=await console.bearer(Scope.READ))
    state = await answer.json()
    page = await (await console.client.get("/operation")).text()

    assert [(one["model"], one["paused"], one["failed"]) for one in state["health"]] == [
        *(("good", False, 1), ("bad", True, 0))
    ]
    assert state["loaded"] == [
        {
            "provider": "local",
            "model": "small",
            "slots": 4,
            "busy": 1,
            "held": 3,
            "waiting": 2,
            "process": "",
        }
    ]
    queued, refused = state["waits"]
    assert queued == {"scope": "remote", "seconds": None, "waiting": 3}
    assert refused["scope"] == "telegram:-7 send"
    assert 490 < refused["seconds"] <= 500
    for shown in ("paused", "1 of 9 failed", "local/small", "telegram:-7 send", "Try remote"):
        assert shown in page, shown


async def test_error_shows_the_steps_of_its_message(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await SqlInbox(console.database, CLOCK).receive([make_incoming(key="5:1")], {})
    parts.log("warning", "fell_back", reason="503 <b>")
    parts.log("info", "answer_continued", turn="telegram:5:2")
    parts.log("error", "turn_failed", exception="Traceback\n  File\nValueError: <script>")
    await console.log_in()
    error_id = error_id_of(TURN)

    listed = await (await console.client.get("/operation")).text()
    page = await (await console.client.get(f"/operation/errors/{error_id}")).text()
    answer = await console.client.get(
        f"/api/v1/operation/errors/{error_id}", headers=await console.bearer(Scope.READ)
    )

    assert f'href="/operation/errors/{error_id}"' in listed
    assert "ValueError: &lt;script&gt;" in listed
    assert error_id_of("telegram:5:2") not in listed
    steps = (await answer.json())["steps"]
    assert [one["event"] for one in steps] == ["received", "fell_back", "turn_failed"]
    assert steps[0]["details"] == {"state": "unanswered"}
    assert "503 &lt;b&gt;" in page
    assert (await console.client.get("/operation/errors/nothing")).status == 404


async def test_error_is_shown_that_another_process_has_told_a_person(
    console: ConsoleUnderTest,
) -> None:
    other = Parts()
    other.log("warning", "not_answered", reason="503")
    await SqlMessageNotes(console.database, CLOCK).add([describe_failure(other.events, TURN)])
    await console.log_in()
    page = await console.client.get(f"/operation/errors/{error_id_of(TURN)}")
    assert "503" in await page.text()
    assert page.status == 200


async def test_provider_is_tried_from_the_page(console: ConsoleUnderTest, parts: Parts) -> None:
    await console.log_in()
    page = await (await console.client.get("/operation")).text()
    fields, headers = {"csrf": hidden_fields(page)["csrf"]}, {"Origin": console.origin}

    async def try_provider(name: str) -> aiohttp.ClientResponse:
        path = f"/operation/providers/{name}/try"
        return await console.client.post(path, data=fields, headers=headers)

    failed = await (await try_provider("remote")).text()
    parts.answers["remote"] = "Hello <i>"
    works = await (await try_provider("remote")).text()

    assert "does not work" in failed
    assert "refused, with the key ***" in failed
    assert "Hello &lt;i&gt;" in works
    assert (await try_provider("nobody")).status == 404


async def read_event(response: aiohttp.ClientResponse) -> tuple[str, str]:
    """Return the id and the data of the next event."""
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            line = (await response.content.readline()).decode().rstrip("\n")
            if not line and any(each.startswith("id: ") for each in lines):
                break
            lines.append(line)
    data = "\n".join(each.removeprefix("data: ") for each in lines if each.startswith("data: "))
    return next(each for each in lines if each.startswith("id: "))[4:], data


async def test_live_page_is_sent_what_changed_and_reconnects_where_it_was(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await console.log_in()

    async with console.client.get("/operation/events") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        shown, first = await read_event(response)
        parts.log("error", "turn_failed", reason="a new failure")
        changed, second = await read_event(response)
    assert "Nothing has failed since the start." in first
    assert "a new failure" in second
    assert changed != shown

    async with console.client.get("/operation/events", headers={"Last-Event-ID": changed}) as same:
        parts.log("error", "turn_failed", reason="one more")
        _, third = await read_event(same)
    assert "one more" in third
    async with console.client.get("/operation/events", headers={"Last-Event-ID": shown}) as missed:
        _, whole = await read_event(missed)
    assert "one more" in whole


async def test_live_page_ends_when_its_token_is_revoked(
    console: ConsoleUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_fragment, "_SECONDS_BETWEEN", 0.01)
    headers = await console.bearer(Scope.READ)

    async with console.client.get("/operation/events", headers=headers) as response:
        await read_event(response)
        assert await console.tokens.revoke_api_token("read")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await response.read()

    assert response.status == 200


async def test_live_pages_of_two_readers_have_forms_of_their_own(console: ConsoleUnderTest) -> None:
    found = []
    for language in ("en", "zh"):
        await console.log_in()  # ends no earlier session
        headers = {"Accept-Language": language}
        async with console.client.get("/operation/events", headers=headers) as response:
            _, shown = await read_event(response)
        found.append((hidden_fields(shown)["csrf"], "Waits for rate limits" in shown))

    (first, is_english), (second, is_english_too) = found
    assert first != second
    assert (is_english, is_english_too) == (True, False)
