"""Queues, leases and channels in SQL, for people to look at."""

from collections.abc import Sequence

from sqlalchemy import case, func, select
from typing_extensions import override

from bot.chat.console.operation import (
    DeliveredPart,
    HeldLease,
    KnownChannel,
    MadeSetting,
    MessageTrace,
    QueueState,
)
from bot.ports import Clock, ServiceState
from bot.storage.sql.database import Database
from bot.storage.sql.tables import (
    choice,
    conversation,
    inbox,
    is_job,
    is_ready,
    is_unsent,
    is_waiting,
    lane,
    outbox,
    receipt,
    role_lease,
)
from bot.storage.units.dialects import clock_at

_LANES = select(func.count()).select_from(lane).where(is_waiting)
_UNSENT = select(func.count()).select_from(outbox).where(is_unsent)
_PART = (outbox.c.part, outbox.c.op, outbox.c.state, outbox.c.attempts, outbox.c.error)
_LEASES = (
    select(role_lease.c.role, role_lease.c.owner, role_lease.c.lease_until)
    .where(is_job)
    .order_by(role_lease.c.role)
)
_SETTINGS = (
    select(*(choice.c.scope, choice.c.key, choice.c.value, choice.c.chosen_by, choice.c.chosen_at))
    .where(~choice.c.key.startswith("persona"))  # what people say of themselves is theirs
    .order_by(choice.c.scope, choice.c.key)
)
_BY_CHANNEL = (
    select(
        receipt.c.conversation,
        func.count().label("answers"),
        func.max(receipt.c.id).label("newest"),
    )
    .group_by(receipt.c.conversation)
    .subquery()
)
_CHANNELS = (
    select(
        *(_BY_CHANNEL.c.conversation, _BY_CHANNEL.c.answers, _BY_CHANNEL.c.newest),
        *(receipt.c.at, receipt.c.preset),
    )
    .join(receipt, receipt.c.id == _BY_CHANNEL.c.newest)
    .order_by(_BY_CHANNEL.c.newest.desc())
)


class SqlServiceState(ServiceState):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def queues(self) -> QueueState:
        now = clock_at(self._database.dialect, self._clock.now())
        is_held = case((conversation.c.lease_until > now, 1), else_=0)
        ready = select(
            func.count(), func.min(conversation.c.ready_since), func.coalesce(func.sum(is_held), 0)
        ).where(is_ready)
        waiting, oldest, held = await self._database.read(lambda c: c.execute(ready).one())
        lanes = await self._database.read(lambda c: c.execute(_LANES).scalar_one())
        unsent = await self._database.read(lambda c: c.execute(_UNSENT).scalar_one())
        return QueueState(waiting, oldest, int(held), lanes, unsent)

    @override
    async def role_leases(self) -> Sequence[HeldLease]:
        rows = await self._database.read(lambda c: c.execute(_LEASES).all())
        return [HeldLease(*row) for row in rows]

    @override
    async def trace(self, turn: str) -> MessageTrace:
        source, _, external_key = turn.partition(":")
        platform, _, bot_id = source.partition("@")
        message = select(inbox.c.received_at, inbox.c.state, inbox.c.crashes).where(
            inbox.c.platform == platform,
            inbox.c.bot_id == bot_id,
            inbox.c.external_key == external_key,
        )
        parts = select(*_PART).where(outbox.c.turn == turn).order_by(outbox.c.part, outbox.c.id)
        row = await self._database.read(lambda c: c.execute(message).one_or_none())
        rows = await self._database.read(lambda c: c.execute(parts).all())
        delivered = [DeliveredPart(*each) for each in rows]
        if row is None:
            return MessageTrace(None, True, 0, delivered)
        return MessageTrace(row.received_at, row.state == "done", row.crashes, delivered)

    @override
    async def channels(self, limit: int) -> Sequence[KnownChannel]:
        newest = _CHANNELS.limit(limit)
        rows = await self._database.read(lambda c: c.execute(newest).all())
        return [
            KnownChannel(row.conversation, row.answers, row.newest, row.at, row.preset)
            for row in rows
        ]

    @override
    async def chat_settings(self) -> Sequence[MadeSetting]:
        rows = await self._database.read(lambda c: c.execute(_SETTINGS).all())
        return [MadeSetting(*row) for row in rows]
