"""An answer in the database, as a worker leaves it."""

from collections.abc import Sequence

from bot.chat.incoming import Said
from bot.chat.receipt import Receipt
from bot.chat.session import Turn, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity
from tests.samples import begin, make_incoming


async def store_answer(
    database: Database,
    *receipts: Receipt,
    incoming: Said | None = None,
    turns: Sequence[Turn] = (),
) -> None:
    clock, incoming = SystemClock(), incoming or make_incoming()
    conversations = Conversations(database, clock, SenderIdentity("me", 10))
    await SqlInbox(database, clock).receive([incoming], {})
    claim, message = await begin(conversations, incoming.address.conversation)
    await conversations.finish(claim, message, TurnResult(turns, receipts=receipts))
    await conversations.release(claim)
