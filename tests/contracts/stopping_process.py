"""A process that stops itself (SIGSTOP) at a given point, and later prints the outcome.

`python -m tests.contracts.stopping_process transaction|before|within URL`
"""

import asyncio
import os
import signal
import sys
import time

from typing_extensions import override

from bot.chat.outgoing import OutgoingMessage
from bot.delivery.sender import Sender
from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.database import Database, open_database
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.statements import SQL, Unit
from tests.fakes import FakeSurface

LANE = "telegram:5"
_STOPPED_SECONDS = 25.0
"""The simulated duration of the stop, which is longer than a request may take."""


class StoppingClock(SystemClock):
    """A clock whose monotonic time jumps when the process is stopped, to avoid real waiting."""

    def __init__(self) -> None:
        self._stopped_seconds = 0.0

    @override
    def monotonic(self) -> float:
        return time.monotonic() + self._stopped_seconds

    def stop(self) -> None:
        """Stop this process until another one sends SIGCONT."""
        self._stopped_seconds += _STOPPED_SECONDS
        stop()


class StoppingSurface(FakeSurface):
    """A surface that stops the process during a request if it has a clock."""

    def __init__(self, clock: StoppingClock | None) -> None:
        super().__init__()
        self._clock = clock

    @override
    async def send(self, message: OutgoingMessage) -> str:
        sent = await super().send(message)
        if self._clock is not None:
            self._clock.stop()
        return sent


def stop() -> None:
    """Stop this process until another one sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


async def stop_in_a_transaction(database: Database) -> str:
    def unit() -> Unit[None]:
        claim = SQL["claim"].query(
            {"of": LANE, "claimed_by": "stopped", "seconds": 60, "now": time.time()}
        )
        yield claim
        stop()
        yield claim

    try:
        await database.run(unit)
    except StoreError:
        return "refused"
    return "committed"


async def stop_in_a_send(database: Database, *, within: bool) -> str:
    clock = StoppingClock()
    surface = StoppingSurface(clock if within else None)
    outbox = SqlOutbox(database, clock, SenderIdentity("stopped", 0))
    sender = Sender(outbox, {"telegram": surface}, clock, settle_seconds=0)
    taken = await sender.claim([LANE])
    if not within:
        clock.stop()
    await sender.deliver_lane(taken[LANE])
    return f"sent {len(surface.messages)}"


async def main(mode: str, url: str) -> None:
    async with open_database(url) as database:
        if mode == "transaction":
            outcome = await stop_in_a_transaction(database)
        else:
            outcome = await stop_in_a_send(database, within=mode == "within")
    sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
