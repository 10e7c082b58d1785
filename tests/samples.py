"""Sample values for tests."""

from datetime import UTC, datetime

from bot.chat.incoming import Address, IncomingMessage, Person, Quote, WakeReason
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage, Session
from bot.runtime.clock import SystemClock
from bot.storage.conversations import Conversations
from bot.storage.database import Database

ALICE = Person("telegram:1", "Alice")
BOB = Person("telegram:2", "Bob")
_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def make_incoming(
    text: str = "hello",
    *,
    key: str = "5:1",
    chat: str = "5",
    thread: str | None = None,
    author: Person = ALICE,
    wake: WakeReason | None = WakeReason.DM,
    quote: str | None = None,
    admin: bool | None = False,
    platform: str = "telegram",
) -> IncomingMessage:
    address = Address(platform, chat, thread)
    return IncomingMessage(
        address=address,
        external_key=key,
        message_id=key.rpartition(":")[2],
        author=author,
        text=text,
        at=_AT,
        wake=wake,
        scopes=(address.conversation, address.lane) if thread else (address.lane,),
        author_is_admin=admin,
        quote=Quote(None, None, quote) if quote else None,
    )


async def format_receipt(number: int, receipt: Receipt) -> str:
    """Format a receipt in one short line."""
    return f"{number} {receipt.preset}: {receipt.prompt.messages[-1].content}\n"


def mask_secret(text: str) -> str:
    return text.replace("sk-canary", "***")


async def begin(
    conversations: Conversations, key: str = "telegram:5", owner: str = "me"
) -> tuple[Claim, InboxMessage]:
    [begun] = await conversations.claim_next([key], owner, 60)
    return begun.claim, begun.message


async def read_session(
    database: Database, conversation: str = "telegram:5", max_turns: int = 100
) -> Session:
    """Read a session without a cache, like a new process."""
    nobody = Claim(conversation, 0, "nobody")
    return await Conversations(database, SystemClock()).load_session(nobody, max_turns)
