"""Measure how much more four workers answer than one, with a model that sleeps.

    python -m tests.bench.roles.scaling --rounds 2

Workers answer a bounded number of conversations at once (`TROUPE_LIMITS__CONVERSATIONS_AT_ONCE`),
so that a worker and not the machine is the limit. More questions wait than all of them can take;
counted is while none of them stands idle: without the first answers and the last ones. A gateway
and a sender are processes of their own; platforms and model are on loopback.
"""

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence

from tests.bench.roles.installation import (
    Installation,
    cpu_seconds,
    running_installation,
    server_cpu_seconds,
)
from tests.bench.roles.sleeping_model import END, AnswerPlan
from tests.support.service_process import ServiceProcess
from tests.waiting import wait_until

_PATIENCE_SECONDS = 600.0
_WAVES = 5
"""How many questions wait for each place of a worker; the first and the last are not counted."""


class AnswerTimes:
    """When the end of an answer was sent to each chat of Telegram, in Unix seconds."""

    def __init__(self, installation: Installation) -> None:
        self._log = installation.platforms.telegram.log
        self._next = len(self._log)
        self._by_chat: dict[str, float] = {}

    def count(self) -> int:
        """Look for more answers; returns how many there are."""
        for call in self._log[self._next :]:
            said = str(call["params"].get("text", ""))
            if call["method"] in {"sendMessage", "editMessageText"} and END in said:
                self._by_chat.setdefault(str(call["params"]["chat_id"]), call["t"])
        self._next = len(self._log)
        return len(self._by_chat)

    @property
    def in_order(self) -> list[float]:
        return sorted(self._by_chat.values())


async def measure_rate(
    installation: Installation,
    others: Mapping[str, Sequence[ServiceProcess]],
    workers: int,
    at_once: int,
) -> float:
    """Let so many workers answer; prints what it costs, and returns the answers a second."""
    chats = [installation.platforms.telegram_dm() for _ in range(workers * at_once * _WAVES)]
    limit = {"TROUPE_LIMITS__CONVERSATIONS_AT_ONCE": str(at_once)}
    async with installation.running("worker", workers, settings=limit) as services:
        processes = {"workers": services, **others}
        began = {role: cpu_seconds(each) for role, each in processes.items()}
        served = server_cpu_seconds(installation.postgres)
        times = AnswerTimes(installation)
        for chat in chats:
            chat.ask("a000")
        await wait_until(lambda: times.count() >= len(chats), _PATIENCE_SECONDS)
        used = {role: cpu_seconds(each) - began[role] for role, each in processes.items()}
        served = server_cpu_seconds(installation.postgres) - served
    wave, sent = workers * at_once, times.in_order
    seconds = sent[-wave - 1] - sent[wave - 1]
    rate = (len(sent) - 2 * wave) / seconds
    costs = {**used, "database's server": served}
    shares = ", ".join(f"{role} {1000 * cpu / len(chats):.1f} ms" for role, cpu in costs.items())
    print(  # noqa: T201
        f"{workers} workers: {rate:6.2f} answers a second; CPU a message: {shares}", flush=True
    )
    return rate


async def measure(options: argparse.Namespace) -> None:
    """Print the rates of one worker and of several in turns, and their ratio."""
    plan = AnswerPlan(1, options.seconds)
    rates: dict[int, list[float]] = {}
    async with (
        running_installation(plan) as installation,
        installation.running("gateway") as gateways,
        installation.running("sender", options.senders) as senders,
    ):
        others = {"gateway": gateways, "sender": senders}
        for _ in range(options.rounds):
            for workers in (1, options.workers):
                rate = await measure_rate(installation, others, workers, options.at_once)
                rates.setdefault(workers, []).append(rate)
    one, several = (statistics.mean(rates[count]) for count in (1, options.workers))
    print(f"{options.workers} workers answer {several / one:.2f} times as much as one")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--senders", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=64, help="conversations of a worker")
    parser.add_argument("--seconds", type=float, default=10.0, help="that the model sleeps")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
