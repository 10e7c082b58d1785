"""Measure how soon a fallback speaks when the first provider fails, and what the failure costs.

    python -m tests.bench.fallback --turns 120

The service runs as a process with Telegram and two providers on loopback. People ask in several
private chats at once; the first provider fails in one way, and the second one answers. Times are
seconds by one clock, from the moment a question is sent on the platform to the moment the second
provider begins to speak; the first row, in which the first provider is well, is what they are
compared with. Calls are requests to providers for each turn. Targets: everything is answered, at
most 1.5 s later at the 95th percentile; without a fallback at most 1.10 calls for each turn.
"""

import argparse
import asyncio
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from typing_extensions import override

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import QUESTION, expected_answer
from tests.e2e.waiting import wait_until

_CHATS = 6
_PATIENCE_SECONDS = 120.0
_TARGET_ADDED_SECONDS = 1.5
_TARGET_CALLS = 1.10
_NOTE = "⚠ For the admins here"


class TimedModel(ModelServer):
    """Notes when it begins to answer each question."""

    def __init__(self) -> None:
        super().__init__()
        self.spoke_at: dict[str, float] = {}

    @override
    def write_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        answer = super().write_answer(messages)
        self.spoke_at.setdefault(answer, time.monotonic())
        return answer


@dataclass
class FailingProvider:
    """Fails in one way: with a status, by ending each connection, or by not being there."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_there: bool = True
    requests: int = 0
    base: str = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._fail)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        if self.is_there:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
        else:
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                port = unused.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}/v1"
        return runner

    async def _fail(self, request: web.Request) -> web.Response:
        self.requests += 1
        if self.status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response({"error": {}}, status=self.status, headers=self.headers)


@dataclass(frozen=True)
class Result:
    """What was measured in one way of failing."""

    name: str
    turns: int
    answered: int
    first_calls: int
    all_calls: int
    seconds: Sequence[float]

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.seconds, n=20)[-1] if len(self.seconds) > 1 else 0.0

    def line(self, control: "Result") -> str:
        calls = f"{self.first_calls / self.turns:5.2f} {self.all_calls / self.turns:5.2f}"
        share = f"{self.name:24} {100 * self.answered / self.turns:6.1f} % {calls}"
        if not self.seconds:
            return share
        median, added = statistics.median(self.seconds), self.p95 - control.p95
        return f"{share} {median:7.3f} {self.p95:7.3f} {max(self.seconds):7.3f} {added:+7.3f}"


async def measure(name: str, failing: FailingProvider | None, turns: int, chain: int) -> Result:
    """Ask `turns` questions; `chain` is how many providers the preset has."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_platforms() as platforms, TimedModel() as model:
            runner = await failing.start() if failing else None
            first = failing.base if failing else model.base
            service = ServiceProcess(Path(folder), platforms, model)
            for provider, base in (("ONE", first), ("TWO", model.base)):
                service.settings[f"TROUPE_PROVIDERS__{provider}__BASE_URL"] = base
                service.settings[f"TROUPE_PROVIDERS__{provider}__MODEL"] = "m"
            fallbacks = [{"provider": "two"}] if chain > 1 else []
            preset = preset_json("tester", provider="one", fallbacks=fallbacks)
            (service.presets / "tester.json").write_text(preset)
            await service.start_and_wait()
            try:
                return await _ask_all(name, failing, turns, platforms, model)
            finally:
                await service.stop()
                if runner is not None:
                    await runner.cleanup()


async def _ask_all(
    name: str,
    failing: FailingProvider | None,
    turns: int,
    platforms: LoopbackPlatforms,
    model: TimedModel,
) -> Result:
    chats = [platforms.telegram_dm() for _ in range(_CHATS)]
    asked_at: dict[str, float] = {}

    async def talk(number: int, where: Conversation) -> int:
        answered = 0
        for turn in range(-(-turns // _CHATS)):
            question = f"T{number:x}b{turn:02x}:1"
            assert QUESTION.search(question)
            before = len(_answers(platforms, where))
            asked_at[expected_answer(question)] = time.monotonic()
            where.say(f"please {question}", 0)
            await wait_until(
                lambda before=before: len(_answers(platforms, where)) > before,  # type: ignore[misc]
                _PATIENCE_SECONDS,
            )
            answered += expected_answer(question) in _answers(platforms, where)
        return answered

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(talk(*one)) for one in enumerate(chats)]
    first_calls = failing.requests if failing else len(model.requests)
    return Result(
        name,
        turns=len(asked_at),
        answered=sum(one.result() for one in tasks),
        first_calls=first_calls,
        all_calls=len(model.requests) + (failing.requests if failing else 0),
        seconds=[at - asked_at[answer] for answer, at in model.spoke_at.items()],
    )


def _answers(platforms: LoopbackPlatforms, where: Conversation) -> list[str]:
    """Return the bot's whole messages, answers and notices of errors, but notes for admins."""
    return [one for one in platforms.bot_texts(where) if not one.startswith((_NOTE, "…"))]


async def main() -> int:
    """Print a row for each way of failing; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=120, help="for each way of failing")
    parser.add_argument("--outage", action="store_true", help="also without a fallback (minutes)")
    options = parser.parse_args()
    busy = FailingProvider(status=429, headers={"Retry-After": "20"})
    ways = {
        "connection refused": FailingProvider(is_there=False),
        "connection reset": FailingProvider(),
        "status 503": FailingProvider(status=503),
        "status 429, wait 20 s": busy,
        "status 401": FailingProvider(status=401),
    }
    print(f"{'the first provider':24} answered first  all  median     p95     max   added")  # noqa: T201
    control = await measure("is well", None, options.turns, 2)
    print(control.line(control))  # noqa: T201
    missed = False
    for name, failing in ways.items():
        result = await measure(name, failing, options.turns, 2)
        missed |= result.p95 - control.p95 > _TARGET_ADDED_SECONDS
        missed |= result.answered < result.turns
        print(result.line(control), flush=True)  # noqa: T201
    if options.outage:
        result = await measure("status 503, no other", FailingProvider(503), options.turns, 1)
        missed |= result.all_calls > _TARGET_CALLS * result.turns
        print(result.line(control))  # noqa: T201
    return int(missed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
