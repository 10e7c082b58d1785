"""Measure what a second process with the same tokens costs: the time until an answer is sent.

    python -m tests.bench.roles.same_tokens --rounds 3

One process of all roles, and two with the same tokens, take turns on one PostgreSQL and Valkey.
People in groups of Telegram and channels of Discord ask, wait for the answer, and ask again. Times
are those of the platforms' servers, from the question to the call that sends the answer.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from tests.bench.roles.installation import Installation, running_installation
from tests.bench.roles.sleeping_model import END, AnswerPlan
from tests.e2e.loopback_platforms import Conversation
from tests.e2e.waiting import wait_until

_PATIENCE_SECONDS = 60.0
_CHATS = 30
_SLOW_SECONDS = 5.0
_PAUSE_SECONDS = (1.5, 2.5)
"""So that no group gets 20 messages in a minute: Telegram allows no more."""


class SentAnswers:
    """When the newest answer was sent to each conversation, in Unix seconds."""

    def __init__(self, installation: Installation) -> None:
        platforms = installation.platforms
        self._logs: list[tuple[list[dict[str, Any]], int]] = [
            (platforms.telegram.log, 0),
            (platforms.discord.log, 0),
        ]
        self.newest: dict[str, float] = {}

    async def follow(self) -> None:
        """Look for answers until cancelled."""
        while True:
            for number, (log, first) in enumerate(self._logs):
                for call in log[first:]:
                    if (name := _conversation_of(call)) is not None:
                        self.newest[name] = call["t"]
                self._logs[number] = (log, len(log))
            await asyncio.sleep(0.01)


def _conversation_of(call: dict[str, Any]) -> str | None:
    """Return the conversation that a call sends an answer to."""
    if call["method"] == "sendMessage" and END in call["params"].get("text", ""):
        return f"telegram:{call['params']['chat_id']}"
    if call["method"] == "POST" and END in str((call.get("json") or {}).get("content", "")):
        _, kind, channel, *_ = call["path"].split("/")
        return f"discord:{channel}" if kind == "channels" else None
    return None


async def talk(where: Conversation, sent: SentAnswers, until: float) -> list[float]:
    """Ask again and again; returns how long each answer took, in seconds."""
    seconds = []
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))
        asked = time.time()
        where.ask("a000")
        await wait_until(lambda: sent.newest.get(where.name, 0.0) > asked, _PATIENCE_SECONDS)  # noqa: B023
        seconds.append(sent.newest[where.name] - asked)
        if seconds[-1] > _SLOW_SECONDS:
            print(f"    {where.name}, asked at {asked:.1f}: {seconds[-1]:.1f} s", flush=True)  # noqa: T201
    return seconds


async def measure_round(
    installation: Installation, chats: Sequence[Conversation], processes: int, seconds: float
) -> list[float]:
    """Run so many processes and let people talk; returns how long each answer took."""
    sent = SentAnswers(installation)
    async with AsyncExitStack() as stack:
        for _ in range(processes):  # one after the other: the first one receives
            await stack.enter_async_context(installation.running("all"))
        async with asyncio.TaskGroup() as group:
            following = group.create_task(sent.follow())
            until = time.monotonic() + seconds
            talks = [asyncio.create_task(talk(chat, sent, until)) for chat in chats]
            await asyncio.wait(talks)
            following.cancel()
    return [one for task in talks for one in task.result()]


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49], cuts[98]


async def measure(options: argparse.Namespace) -> None:
    """Print the times of each round, and the ratio of all."""
    plan = AnswerPlan(1, options.model_seconds)
    taken: dict[int, list[float]] = {1: [], 2: []}
    async with running_installation(plan, only_telegram=False) as installation:
        platforms = installation.platforms
        kinds = (platforms.telegram_group, platforms.channel)
        for _ in range(options.rounds):
            for processes, all_seconds in taken.items():
                chats = [kinds[number % 2]() for number in range(_CHATS)]
                seconds = await measure_round(installation, chats, processes, options.seconds)
                all_seconds += seconds
                p50, p99 = _percentiles(seconds)
                print(  # noqa: T201
                    f"{processes} processes: p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms"
                    f" ({len(seconds)} answers)",
                    flush=True,
                )
        conflicts = [call for call in platforms.telegram.log if call["status"] == 409]
    (p50, p99), (pair_p50, pair_p99) = (_percentiles(taken[count]) for count in (1, 2))
    print(  # noqa: T201
        f"two processes take {pair_p50 / p50:.2f} times as long at p50, {pair_p99 / p99:.2f} times"
        f" at p99; {len(conflicts)} polls were refused (HTTP 409)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a round")
    parser.add_argument("--model-seconds", type=float, default=0.2)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
