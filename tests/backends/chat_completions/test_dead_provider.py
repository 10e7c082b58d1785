"""A provider that fails and recovers, simulated minute by minute on a fake clock."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
from typing_extensions import override

from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.request_runner import (
    ChatRequest,
    ChatRequestRunner,
    HttpStatusError,
)
from bot.backends.chat_completions.wire import ChatCompletionsParser
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import BackendUnavailable
from bot.runtime.clock import SystemClock
from bot.runtime.http_client import ConnectionFailed, HttpResponse
from tests.rigs.fake_openai import WELL
from tests.simulation.event_loop import SimulatedLoop

DIES_AT = 10.0
FIRST_TOKEN_SECONDS = 30.0


class LoopClock(SystemClock):
    """The clock of the running event loop."""

    @override
    def now(self) -> float:
        return self.monotonic()

    @override
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class WholeResponse:
    """A response that is available immediately."""

    status = 200

    def __init__(self) -> None:
        self.headers = {"content-type": "text/event-stream"}
        self._parts = [b"".join(cast("list[bytes]", WELL))]

    async def read(self, _deadline: float, _pause_seconds: float = 0.0) -> bytes:
        return self._parts.pop() if self._parts else b""

    async def close(self) -> None:
        pass


@dataclass
class Provider:
    """A provider that answers, except during one outage of a certain kind."""

    way: str
    back_at: float
    calls: int = 0
    """The number of requests during the outage."""
    failed_at: float = 0.0
    """The time when the first of these requests failed."""

    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        loop = asyncio.get_running_loop()
        if not DIES_AT <= loop.time() < self.back_at:
            return cast(HttpResponse, WholeResponse())
        self.calls += 1
        if self.way == "silent":
            await asyncio.sleep(deadline - loop.time())
        self.failed_at = self.failed_at or loop.time()
        match self.way:
            case "silent":
                raise TimeoutError
            case "refused":
                raise ConnectionFailed("connection refused", is_request_sent=False)
            case _:
                raise HttpStatusError(int(self.way), {}, b"")


@dataclass
class Outage:
    """The requests and results of a simulated outage."""

    provider: Provider
    requests: int = 0
    """The number of requests during the outage."""
    opened_at: float = 0.0
    closed_at: float = 0.0
    asked: list[tuple[float, bool]] = field(default_factory=list)
    """The time of each question, and whether it was answered."""


def run_outage(way: str, per_second: float) -> Outage:
    """Send requests before, during, and after an outage that lasts at least forty requests."""
    loop = SimulatedLoop(random.Random(1))
    back_at = DIES_AT + max(60.0, 40 / per_second)
    outage = Outage(Provider(way, back_at))
    settings = OpenAISettings(base_url="http://x/v1", first_token_seconds=FIRST_TOKEN_SECONDS)
    runner = ChatRequestRunner(
        settings,
        Endpoint("acme", "http://x/v1"),
        outage.provider.post,
        ChatCompletionsParser,
        clock=LoopClock(),
        random_source=random.Random(1),
    )

    async def ask() -> None:
        at = loop.time()
        try:
            events = [event async for event in runner.run(ChatRequest("/c", {}, "m", ()))]
        except BackendUnavailable:
            events = []
        outage.asked.append((at, bool(events)))

    async def watch() -> None:
        while True:
            is_open = any(one.paused for one in runner.model_health())
            if is_open and not outage.opened_at:
                outage.opened_at = loop.time()
            if not is_open and outage.opened_at and loop.time() >= back_at:
                outage.closed_at = outage.closed_at or loop.time()
            await asyncio.sleep(0.05)

    async def talk() -> None:
        watching = asyncio.create_task(watch())
        async with asyncio.TaskGroup() as group:
            while loop.time() < back_at + 30:
                outage.requests += DIES_AT <= loop.time() < back_at
                group.create_task(ask())
                await asyncio.sleep(1 / per_second)
        watching.cancel()

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(talk())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return outage


@pytest.mark.parametrize("per_second", [0.05, 0.5, 2, 10])
@pytest.mark.parametrize("way", ["refused", "500", "503", "silent"])
def test_dead_provider_gets_few_requests_and_is_used_again_after_recovery(
    way: str, per_second: float
) -> None:
    outage = run_outage(way, per_second)
    provider = outage.provider
    seconds_between = 1 / per_second
    # Where nothing comes at all nothing is repeated: it takes two more questions.
    further = seconds_between * (2 if way == "silent" else 1)
    assert provider.failed_at <= outage.opened_at <= provider.failed_at + 2 + further
    assert provider.calls <= 1.10 * outage.requests
    assert outage.closed_at <= provider.back_at + 20 + seconds_between
    for at, is_answered in outage.asked:
        if at < DIES_AT - 1 or at > provider.back_at + 20 + seconds_between:
            assert is_answered
