"""Find the conversations of a channel or a server, and have them deleted by the workers."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import or_, select

from bot.chat.incoming import HISTORY_MARK, ForgetRequested, address_of
from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.tables import conversation, receipt


async def conversations_of_channel(database: Database, channel: str) -> Sequence[str]:
    """Return the conversations of a channel, with those of its topics and other histories."""
    key = conversation.c.key
    parts = [key.startswith(f"{channel}{mark}", autoescape=True) for mark in (":", HISTORY_MARK)]
    query = select(key).where(or_(key == channel, *parts)).order_by(key)
    return await database.read(lambda c: c.execute(query).scalars().all())


async def conversations_of_server(database: Database, server: str) -> Sequence[str]:
    """Return the conversations of a server in which something was answered in 400 days."""
    of = receipt.c.conversation
    query = select(of).where(receipt.c.server == server).distinct().order_by(of)
    return await database.read(lambda c: c.execute(query).scalars().all())


async def request_deletion(
    database: Database, clock: Clock, keys: Sequence[str], person: str | None
) -> None:
    """Ask for the deletion of conversations, or of what a person said in them.

    The worker of each conversation does so in its turn, with all that was made of it.
    """
    request, at = secrets.token_hex(6), datetime.fromtimestamp(clock.now(), UTC)
    events = [
        ForgetRequested(
            address=address_of(key),
            external_key=f"operator:{request}:{key}",
            person_id=person,
            at=at,
            scopes=(key,),
        )
        for key in keys
    ]
    await SqlInbox(database, clock).receive(events, {})
