"""The operation page: this and other processes, errors with steps, and provider tests."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import pytest
from sqlalchemy import update
from typing_extensions import override

from bot.chat.operation import ModelHealth, ModelInMemory
from bot.chat.session import short_error_id
from bot.console.operation import OperationPage, build_process_report
from bot.errors import BackendUnavailable
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.dead_letters import DeadLetters
from bot.storage.inbox import SqlInbox
from bot.storage.operation import NodeRegistry, PauseStore, SqlMessageNotes
from bot.storage.reports import ServiceState
from bot.storage.tables import node
from bot.telemetry.logs import RecentEvents, create_failure_note
from bot.telemetry.metrics import CHECKED_ANSWERS, count_withheld_answers
from tests.fakes import FakeBackend
from tests.samples import make_incoming, mask_secret
from tests.support.console import ConsoleUnderTest, MakeParts
from tests.waiting import PATIENCE_SECONDS

CLOCK = SystemClock()
TURN = "telegram:5:1"
PROVIDERS: list[Mapping[str, object]] = [
    {"name": "remote", "kind": "openai", "model": "m", "presets": ["nora"]},
    {"name": "local", "kind": "llama_cpp", "model": None, "presets": ["lan"]},
]


class WatchedBackend(FakeBackend):
    @override
    def model_health(self) -> Sequence[ModelHealth]:
        return [ModelHealth("good", False, 9, 1), ModelHealth("bad", True, 0, 0)]


class LocalBackend(FakeBackend):
    @override
    def models_in_memory(self) -> Sequence[ModelInMemory]:
        return [ModelInMemory("small", 4, 1, 3, 2)]


@dataclass
class Parts:
    """The sources of the data on the page."""

    events: RecentEvents = field(default_factory=RecentEvents)
    rate_limits: InProcessRateLimits = field(default_factory=lambda: InProcessRateLimits(CLOCK))
    answers: dict[str, str] = field(default_factory=dict)

    async def try_preset(self, preset: Preset) -> str:
        if preset.provider not in self.answers:
            raise BackendUnavailable("refused, with the key sk-canary")
        return self.answers[preset.provider]

    def log(self, level: str, event: str, turn: str = TURN, **details: object) -> None:
        at = "2026-11-22T20:00:00.123456Z"
        self.events(
            None, level, {"event": event, "level": level, "turn": turn, "timestamp": at, **details}
        )


@pytest.fixture
def parts() -> Parts:
    return Parts()


async def works() -> str | None:
    return None


async def fails() -> str | None:
    return "not connected <b>"


def find_preset(provider: str) -> Preset:
    return Preset(name="nora", provider=provider, model="tiny")


@pytest.fixture
def make_parts(parts: Parts) -> MakeParts:
    return lambda database: [
        OperationPage(
            {"database": works, "discord": fails},
            ServiceState(database, CLOCK),
            PROVIDERS,
            {"remote": WatchedBackend(), "local": LocalBackend()},
            lambda name: 3 if name == "remote" else 0,
            parts.rate_limits,
            parts.events,
            NodeRegistry(database, CLOCK),
            PauseStore(database, CLOCK),
            DeadLetters(database, CLOCK),
            SqlMessageNotes(database, CLOCK),
            "",
            find_preset,
            parts.try_preset,
            mask_secret,
            CLOCK,
        )
    ]


async def test_state_lists_open_circuit_breakers_models_and_waiting_requests(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await parts.rate_limits.block_calls("telegram:-7 send", 500)
    await console.log_in()

    state, page = await console.read("/operation"), await console.page("/operation")

    assert [(one["model"], one["paused"], one["failed"]) for one in state["health"]] == [
        *(("good", False, 1), ("bad", True, 0))
    ]
    [loaded] = state["loaded"]
    assert list(loaded.values()) == ["small", 4, 1, 3, 2, "local", ""]
    queued, refused = state["waits"]
    assert queued == {"scope": "remote", "seconds": None, "waiting": 3}
    assert refused["scope"] == "telegram:-7 send"
    assert 300 < refused["seconds"] <= 500
    for shown in ("paused", "1 of 9 failed", "local/small", "telegram:-7 send", "Try remote"):
        assert shown in page, shown


async def test_error_shows_the_steps_of_its_message(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await SqlInbox(console.database, CLOCK).receive([make_incoming(key="5:1")], {})
    parts.log("warning", "fallback_used", preset="nora", reason="503 <b>")
    parts.log("info", "answer_continued", turn="telegram:5:2")
    parts.log("error", "turn_failed", exception="Traceback\n  File\nValueError: <script>")
    await console.log_in()
    error_id = short_error_id(TURN)

    listed = await console.page("/operation")
    page = await console.page(f"/operation/errors/{error_id}")
    steps = (await console.read(f"/operation/errors/{error_id}"))["steps"]

    assert f'href="/operation/errors/{error_id}"' in listed
    assert "ValueError: &lt;script&gt;" in listed
    assert short_error_id("telegram:5:2") not in listed
    assert [one["event"] for one in steps] == ["received", "fallback_used", "turn_failed"]
    assert 'href="/channels/telegram%3A5"' in page
    assert 'href="/presets/nora"' in page
    assert steps[0]["details"] == {"channel": "telegram:5", "state": "unanswered"}
    assert "503 &lt;b&gt;" in page
    assert (await console.client.get("/operation/errors/nothing")).status == 404


async def test_error_id_shown_by_another_process_is_found(
    console: ConsoleUnderTest,
) -> None:
    other = Parts()
    other.log("warning", "answer_failed", reason="503")
    await SqlMessageNotes(console.database, CLOCK).add([create_failure_note(other.events, TURN)])
    await console.log_in()
    assert "503" in await console.page(f"/operation/errors/{short_error_id(TURN)}")


async def test_provider_can_be_tested_from_the_page(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await console.log_in()

    async def try_provider(name: str) -> aiohttp.ClientResponse:
        return await console.send_form(f"/operation/providers/{name}/try", "/operation")

    failed = await (await try_provider("remote")).text()
    parts.answers["remote"] = "Hello <i>"
    works = await (await try_provider("remote")).text()

    assert "does not work" in failed
    assert "Model tiny, of the preset nora" in failed
    assert "Model tiny, of the preset nora" in works
    assert "refused, with the key ***" in failed
    assert "Hello &lt;i&gt;" in works
    assert (await try_provider("nobody")).status == 404


async def test_page_refreshes_itself_and_shows_changes(
    console: ConsoleUnderTest, parts: Parts
) -> None:
    await console.log_in()
    first = await console.page("/operation")
    parts.log("error", "turn_failed", reason="a new failure")

    async with asyncio.timeout(PATIENCE_SECONDS):
        while "a new failure" not in (page := await console.page("/operation")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the state is read once a second

    assert 'id="state" data-refresh="2"' in page
    assert "Nothing has failed since the processes started." in first


async def test_state_shows_components_queues_processes_and_pauses(
    console: ConsoleUnderTest,
) -> None:
    await SqlInbox(console.database, CLOCK).receive([make_incoming()], {})
    await NodeRegistry(console.database, CLOCK).register("host:<1>", "gateway,worker", "0.2.0")
    pauses = PauseStore(console.database, CLOCK)
    await pauses.begin("telegram", "command line")
    await pauses.begin("discord", "command line")
    await pauses.end("discord")
    await console.log_in()

    state, page = await console.read("/operation"), await console.page("/operation")

    assert (state["conversations"], state["held"], state["unsent"]) == (1, 0, 0)
    assert state["oldest_seconds"] >= 0
    assert state["parts"] == {"database": "ok", "discord": "not connected <b>"}
    assert "not connected &lt;b&gt;" in page
    assert "llama_cpp" in page
    assert [(one["owner"], one["is_silent"]) for one in state["nodes"]] == [("host:<1>", False)]
    assert [one["scope"] for one in state["pauses"]] == ["telegram"]
    assert state["dead_letters"] == 0
    assert "host:&lt;1&gt;" in page


async def test_errors_and_models_in_readable_process_reports_are_shown(
    console: ConsoleUnderTest,
) -> None:
    elsewhere, before = Parts(), count_withheld_answers()
    elsewhere.log("error", "turn_failed", exception=f"{'x' * 1500}\nValueError: <script>")
    nodes = NodeRegistry(console.database, CLOCK)
    backends = {"remote": WatchedBackend([]), "local": LocalBackend([])}
    await nodes.register("host:<2>", "worker", "0.2.0")
    await nodes.store_report("host:<2>", build_process_report(backends, elsewhere.events))
    await nodes.register("host:3", "worker", "0.2.0")
    CHECKED_ANSWERS.labels("words").inc(2)
    CHECKED_ANSWERS.labels("unchecked").inc()  # it was shown
    other_version = update(node).where(node.c.owner == "host:3").values(report=b"of another one")
    await console.database.write(lambda c: c.execute(other_version).rowcount)
    await console.log_in()
    error_id = short_error_id(TURN)

    state, page = await console.read("/operation"), await console.page("/operation")
    steps = await console.page(f"/operation/errors/{error_id}")

    assert [(one["error_id"], one["process"]) for one in state["errors"]] == [
        *((error_id, "host:<2>"),)
    ]
    assert [(one["model"], one["process"]) for one in state["health"]] == [
        (model, process) for process in ("", "host:<2>") for model in ("good", "bad")
    ]
    assert [(one["model"], one["busy"], one["process"]) for one in state["loaded"]] == [
        *(("small", 1, ""), ("small", 1, "host:<2>"))
    ]
    assert state["withheld"] == before + before + 2
    assert "host:&lt;2&gt;" in page
    assert "ValueError: &lt;script&gt;" in page
    assert "turn_failed" in steps
    assert "x" * 1000 not in steps  # long values are cut before they are shared
