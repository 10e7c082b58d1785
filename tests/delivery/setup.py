"""A sender with a database and a fake surface."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from bot.chat.incoming import IncomingMessage
from bot.chat.outgoing import (
    Attachment,
    Face,
    Limits,
    MessageContent,
    OutgoingPart,
    PrivateDelivery,
)
from bot.chat.session import TurnResult
from bot.delivery.sender import Sender
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.tables import outbox
from tests.fakes import LIMITS, FakeClock, FakeSurface
from tests.samples import begin, make_incoming

LANE = "telegram:5"
WITHOUT_NONCES = replace(LIMITS, deduplicates_sends=False)


class Delivery:
    def __init__(
        self,
        database: Database,
        limits: Limits = LIMITS,
        platforms: tuple[str, ...] = ("telegram",),
        surface: FakeSurface | None = None,
        **options: Any,
    ) -> None:
        self.database = database
        self.clock = FakeClock()
        self.surface = surface or FakeSurface(limits)
        self.outbox = SqlOutbox(database, self.clock, SenderIdentity("me", settle_seconds=10))
        surfaces = dict.fromkeys(platforms, self.surface)
        self.sender = Sender(self.outbox, surfaces, self.clock, settle_seconds=10, **options)

    @property
    def texts(self) -> list[str]:
        return list(self.surface.messages.values())

    def calls(self, name: str) -> int:
        return sum(call == name for call, _ in self.surface.calls)

    async def queue(
        self,
        *texts: str,
        incoming: IncomingMessage | None = None,
        file: Attachment | None = None,
        opening: str | None = None,
        face: Face | None = None,
        first_part: int = 0,
        private: PrivateDelivery | None = None,
    ) -> None:
        """Queue an answer with one part per text; after an `opening` message, they edit it."""
        conversations = Conversations(self.database, self.clock)
        await SqlInbox(self.database, self.clock).receive(
            [incoming or make_incoming(key="5:0")], {}
        )
        claim, message = await begin(conversations, LANE)
        contents = [MessageContent(text, face) for text in texts]
        parts = [
            OutgoingPart(part, content, file, private_delivery=private)
            for part, content in enumerate(contents, first_part)
        ]
        if opening is not None:
            content = MessageContent(opening)
            for part in parts:
                await conversations.open_part(
                    claim, message, replace(part, content=content, file=None)
                )
        await conversations.finish(claim, message, TurnResult(outgoing=parts))

    async def states(self) -> list[str]:
        query = select(outbox.c.state).order_by(outbox.c.id)
        return list(await self.database.read(lambda c: c.execute(query).scalars().all()))

    async def due_in(self) -> float:
        """Return the seconds until the first row is due."""
        query = select(outbox.c.not_before).order_by(outbox.c.id).limit(1)
        due: float = await self.database.read(lambda c: c.execute(query).scalar_one())
        return due - self.clock.now()

    async def crash(self) -> None:
        """Leave the row in the state of a process that was killed during a request."""
        await self.outbox.reserve_due_rows([LANE])
        await self.database.write(
            lambda c: c.execute(update(outbox).values(started_at=self.clock.now() - 60)).rowcount
        )
        await self.outbox.release_all()

    async def work(self) -> None:
        """Deliver all due rows, as the worker pool does."""
        for row in (await self.sender.claim([LANE])).values():
            await self.sender.deliver_lane(row)


@asynccontextmanager
async def working(delivery: Delivery) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(delivery.work())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
