"""Measure what a second process with the same tokens costs: the time until an answer is sent.

    python -m tests.bench.roles.same_tokens --rounds 4

One process of all roles, and two with the same tokens, take turns on one PostgreSQL and Valkey.
Questions come at random moments, at an even rate over all chats, and each to the chat that was
asked longest ago: private chats and groups of Telegram, direct messages and channels of Discord,
so many of them that none meets a limit of its platform. Times are those of the platforms' servers,
from the question to the call that sends the answer; the first seconds of a round are not counted.
"""

import argparse
import asyncio
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from http.client import CONFLICT, TOO_MANY_REQUESTS
from typing import Any

from tests.bench.roles.installation import (
    Installation,
    cpu_seconds,
    running_installation,
    server_cpu_seconds,
)
from tests.bench.roles.sleeping_model import END, AnswerPlan
from tests.support.chats import Conversation
from tests.waiting import wait_until

_PATIENCE_SECONDS = 60.0
_SLOW_SECONDS = 5.0
_CUTS = (50, 95, 99)


class SentAnswers:
    """When the newest answer was sent to each conversation, in Unix seconds."""

    def __init__(self, installation: Installation) -> None:
        platforms = installation.platforms
        # Of other rounds nothing is read.
        self._logs: list[tuple[list[dict[str, Any]], int]] = [
            (log, len(log)) for log in (platforms.telegram.log, platforms.discord.log)
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


class People:
    """Those who ask in all chats of a round."""

    def __init__(self, chats: Sequence[Conversation], sent: SentAnswers) -> None:
        self._idle = deque(chats)
        self._sent = sent
        self.seconds: list[float] = []
        """How long each answer took that is counted."""

    async def ask_at_random(self, rate: float, warm_up: float, seconds: float) -> None:
        """Ask so many questions a second, and wait for all answers.

        Args:
            rate: questions a second, in all chats together.
            warm_up: for how many seconds answers are not counted.
            seconds: for how long questions are asked after that.
        """
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            at = begin
            while (at := at + random.expovariate(rate)) < begin + warm_up + seconds:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                if not self._idle:
                    raise RuntimeError("an answer is missing in every chat: give more --chats")
                group.create_task(self._ask(self._idle.popleft(), at >= begin + warm_up))

    async def _ask(self, where: Conversation, is_counted: bool) -> None:
        asked, newest = time.time(), self._sent.newest
        where.ask("a000")
        await wait_until(lambda: newest.get(where.name, 0.0) > asked, _PATIENCE_SECONDS)
        took = newest[where.name] - asked
        if is_counted:
            self.seconds.append(took)
        if took > _SLOW_SECONDS:
            print(f"    {where.name}, asked at {asked:.1f}: {took:.1f} s", flush=True)  # noqa: T201
        self._idle.append(where)


async def measure_round(
    installation: Installation, processes: int, options: argparse.Namespace
) -> list[float]:
    """Run so many processes and let people ask; returns how long each answer took."""
    platforms = installation.platforms
    kinds = (
        *(platforms.telegram_dm, platforms.telegram_group),
        *(platforms.discord_dm, platforms.channel),
    )
    chats = [kinds[number % len(kinds)]() for number in range(options.chats)]
    sent = SentAnswers(installation)
    people = People(chats, sent)
    async with AsyncExitStack() as stack:
        # One after the other: the first one receives.
        services = [
            (await stack.enter_async_context(installation.running("all")))[0]
            for _ in range(processes)
        ]
        used = [cpu_seconds([one]) for one in services]
        served = server_cpu_seconds(installation.postgres)
        calls = len(platforms.telegram.log)
        following = asyncio.create_task(sent.follow())
        try:
            await people.ask_at_random(options.rate, options.warm_up, options.seconds)
        finally:
            following.cancel()
        each = (cpu_seconds([one]) - before for one, before in zip(services, used, strict=True))
        served = server_cpu_seconds(installation.postgres) - served
        conflicts = sum(one["status"] == CONFLICT for one in platforms.telegram.log[calls:])
        asked = options.rate * (options.warm_up + options.seconds)
        cpu = " + ".join(f"{1000 * one / asked:.1f}" for one in each)
        print(  # noqa: T201
            f"{processes} processes: {_described(people.seconds)};"
            f" CPU a message: {cpu} ms, database's server {1000 * served / asked:.1f} ms;"
            f" {conflicts} polls refused; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return people.seconds


def _percentiles(seconds: Sequence[float]) -> list[float]:
    cuts = statistics.quantiles(seconds, n=100)
    return [cuts[one - 1] for one in _CUTS]


def _described(seconds: Sequence[float]) -> str:
    found = zip(_CUTS, _percentiles(seconds), strict=True)
    times = ", ".join(f"p{cut} {1000 * each:.0f} ms" for cut, each in found)
    return f"{times} ({len(seconds)} answers)"


async def measure(options: argparse.Namespace) -> None:
    """Print the times of each round, and the ratios of all."""
    plan = AnswerPlan(1, options.model_seconds)
    taken: dict[int, list[float]] = {1: [], 2: []}
    async with running_installation(plan, only_telegram=False) as installation:
        for number in range(options.rounds):
            for processes in (1, 2) if number % 2 == 0 else (2, 1):  # the load of others may grow
                taken[processes] += await measure_round(installation, processes, options)
        log = installation.platforms.telegram.log
        conflicts, refused = (
            sum(one["status"] == code for one in log) for code in (CONFLICT, TOO_MANY_REQUESTS)
        )
    for processes, seconds in taken.items():
        print(f"all rounds of {processes}: {_described(seconds)}")  # noqa: T201
    pairs = zip(_CUTS, _percentiles(taken[1]), _percentiles(taken[2]), strict=True)
    ratios = ", ".join(f"{pair / one:.2f} at p{cut}" for cut, one, pair in pairs)
    print(  # noqa: T201
        f"two processes take as many times as long as one: {ratios};"
        f" {conflicts} polls were refused (HTTP 409), also while processes began and ended,"
        f" {refused} calls (429)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of each number of processes")
    parser.add_argument("--chats", type=int, default=200, help="of a round")
    parser.add_argument("--rate", type=float, default=10.0, help="questions a second")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a round that are counted")
    parser.add_argument("--model-seconds", type=float, default=0.2)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
