"""Send what is in the outbox: in order within a lane, each row once.

A row is noted as being sent before the request goes out. When no answer comes back, nobody knows
whether it arrived: then the platform is asked, and only what is not there is sent again
(RELIABILITY.md, 7.5; the crash table in 7.6).
"""

import asyncio
import base64
import hashlib
import random
from collections.abc import Mapping

import structlog

from bot.chat.outgoing import OutboxOperation, OutboxRow, OutboxState, OutgoingMessage
from bot.errors import (
    OutcomeUnknown,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
)
from bot.ports import Clock, Outbox, Surface
from bot.telemetry.metrics import OUTBOX_RECONCILIATIONS, OUTBOX_SENDS

_log = structlog.get_logger(__name__)
_SOON_SECONDS = 5.0  # a lane waits this long itself; for longer it is put down
_LONGEST_PAUSE_SECONDS = 60.0
_TOKEN_TROUBLE_SECONDS = 30.0
_NONCE_CHARS = 24  # Discord takes 25


class Sender:
    """`settle_seconds` is how late a platform may still accept a request that we gave up on."""

    def __init__(
        self,
        outbox: Outbox,
        surfaces: Mapping[str, Surface],
        clock: Clock,
        *,
        settle_seconds: float,
    ) -> None:
        self._outbox = outbox
        self._surfaces = surfaces
        self._clock = clock
        self._settle_seconds = settle_seconds
        self._arrivals: dict[int, asyncio.Event] = {}

    async def work(self, lane: str) -> None:
        """Send what is due in this lane, and what becomes due soon."""
        while row := await self._outbox.take(lane):
            if row.address.platform not in self._surfaces:
                _log.warning("platform_not_running", lane=lane)
                await self._postpone(row, self._clock.now() + _LONGEST_PAUSE_SECONDS)
                return
            due = await self._deliver(row)
            wait = due - self._clock.now()
            if wait > _SOON_SECONDS:
                return
            if wait > 0:
                await self._clock.sleep(wait)

    async def arrival(self, row_id: int) -> str:
        """Wait until this row was sent, here or by another process; gives the message's id.

        Raises `Refused` when it never will be.
        """
        arrived = self._arrivals.setdefault(row_id, asyncio.Event())
        try:
            while (external_id := await self._outbox.external_id(row_id)) is None:
                try:
                    async with asyncio.timeout(1):
                        await arrived.wait()
                except TimeoutError:
                    continue
            return external_id
        finally:
            self._arrivals.pop(row_id, None)

    async def _deliver(self, row: OutboxRow) -> float:
        """Do what a row asks for; gives the time from which its lane can go on."""
        now = self._clock.now()
        outcome = "sent"
        try:
            if row.state is OutboxState.UNKNOWN:
                await self._reconcile(row)
            else:
                await self._arrived(row, await self._carry_out(row))
        except RateLimited as error:
            outcome = "rate_limited"
            due = now + error.retry_after_seconds + random.uniform(0, 0.5)  # noqa: S311
            await self._postpone(row, due)
        except Unreachable:
            outcome = "unreachable"
            due = now + min(2.0 ** min(row.attempts, 6), _LONGEST_PAUSE_SECONDS)
            await self._postpone(row, due)
        except PlatformFatal:
            outcome = "fatal"
            due = now + _TOKEN_TROUBLE_SECONDS
            await self._postpone(row, due)
        except OutcomeUnknown as error:
            outcome = "unknown"
            due = now + self._patience(row)
            _log.info("outcome_unknown", row=row.id, op=row.op, reason=str(error))
            await self._outbox.mark_unknown(row, due)
        except Refused as error:
            outcome = "refused"
            due = now
            _log.warning("refused", row=row.id, op=row.op, lane=row.address.lane, reason=str(error))
            await self._outbox.mark_dead(row, str(error))
            self._settled(row)
        else:
            due = now
        OUTBOX_SENDS.labels(row.address.platform, outcome).inc()
        return due

    async def _reconcile(self, row: OutboxRow) -> None:
        """Settle an unknown outcome: what arrived is sent, what did not is pending again."""
        found = None
        if (
            row.op is OutboxOperation.SEND and row.interaction is None
        ):  # the others may simply be repeated
            found = await self._find(row)
        OUTBOX_RECONCILIATIONS.labels(row.address.platform, str(found is not None).lower()).inc()
        _log.info("reconciled", row=row.id, op=row.op, arrived=found is not None)
        if found is None:
            await self._outbox.reschedule(row, self._clock.now())
        else:
            await self._arrived(row, found)

    async def _find(self, row: OutboxRow) -> str | None:
        surface = self._surfaces[row.address.platform]
        known = await self._outbox.known_ids(row.address)
        try:
            return await surface.find(_to_message(row), after=row.reply_to, known=known)
        except Refused:  # we may not look there
            if surface.limits(row.address).placeholder is None:
                return None  # sent again, its nonce keeps it from appearing twice
            raise

    async def _carry_out(self, row: OutboxRow) -> str | None:
        surface = self._surfaces[row.address.platform]
        match row.op:
            case OutboxOperation.SEND:
                return await surface.send(_to_message(row))
            case OutboxOperation.EDIT:
                await surface.edit(row.address, _target(row), row.text)
            case OutboxOperation.DELETE:
                await surface.delete(row.address, _target(row))
        return None

    async def _arrived(self, row: OutboxRow, external_id: str | None) -> None:
        await self._outbox.mark_sent(row, external_id)
        self._settled(row)

    def _settled(self, row: OutboxRow) -> None:
        if row.id in self._arrivals:
            self._arrivals[row.id].set()

    async def _postpone(self, row: OutboxRow, due: float) -> None:
        """Later; what was unknown stays so, because only the platform can say otherwise."""
        if row.state is OutboxState.UNKNOWN:
            await self._outbox.mark_unknown(row, due)
        else:
            await self._outbox.reschedule(row, due)

    def _patience(self, row: OutboxRow) -> float:
        """How long an unknown outcome has to settle before it can be looked up."""
        limits = self._surfaces[row.address.platform].limits(row.address)
        if row.op is not OutboxOperation.SEND or limits.placeholder is None:
            return min(1.0, self._settle_seconds)  # repeating it does no harm
        return self._settle_seconds


def nonce(turn: str, part: int) -> str:
    """Name a message for ever: the same part of the same turn has the same nonce on any machine."""
    digest = hashlib.sha256(f"{turn}/{part}".encode()).digest()
    return base64.b32encode(digest).decode()[:_NONCE_CHARS]


def _to_message(row: OutboxRow) -> OutgoingMessage:
    return OutgoingMessage(
        row.address,
        row.text,
        nonce(row.turn, row.part),
        reply_to=row.reply_to,
        interaction=row.interaction,
        file=row.file,
    )


def _target(row: OutboxRow) -> str:
    if row.external_id is None:
        raise Refused("the message to change was never sent")
    return row.external_id
