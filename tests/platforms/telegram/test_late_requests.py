"""Test requests that a suspended process or a slow server delays past the settle time.

Another sender repeats the message in the meantime, but it must appear only once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, MessageContent, OutgoingMessage, OutgoingPart
from bot.chat.rate import RateLimitScope
from bot.chat.session import TurnResult
from bot.delivery.pacing import RateLimitedSurface
from bot.delivery.sender import Sender
from bot.errors import Unreachable
from bot.ports import Surface
from bot.runtime.http_client import send_only_if
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from tests.fakes import FakeClock
from tests.platforms.telegram.conftest import Rig
from tests.rigs.tgwire import METHODS
from tests.samples import begin, make_incoming
from tests.waiting import wait_until

ALICE = 5
LANE = f"telegram:{ALICE}"
SETTLE_SECONDS = 10


class LeapingClock(FakeClock):
    """A clock that jumps ahead instead of sleeping."""

    @override
    async def sleep(self, seconds: float) -> None:
        await self.advance(seconds)


class InterruptedRates(InProcessRateLimits):
    """Rate limits that call a function while a call waits."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    @override
    async def take_call(self, scopes: Sequence[RateLimitScope]) -> float:
        wait = await super().take_call(scopes)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return wait


class Process:
    """A process with a sender; all processes use the same outbox and platform."""

    def __init__(self, name: str, database: Database, surface: Surface, clock: FakeClock) -> None:
        self.rates = InterruptedRates(clock)
        self.outbox = SqlOutbox(database, clock, SenderIdentity(name, SETTLE_SECONDS))
        limited = RateLimitedSurface(surface, self.rates, clock)
        self.sender = Sender(
            self.outbox, {"telegram": limited}, clock, settle_seconds=SETTLE_SECONDS
        )

    async def work(self) -> None:
        for row in (await self.sender.claim([LANE])).values():
            await self.sender.deliver_lane(row)


@pytest.fixture
async def surface(rig: Rig) -> AsyncIterator[Surface]:
    bot = rig.bot()
    yield bot.surface
    await bot.close()


async def queue(database: Database, clock: FakeClock, question: int, *texts: str) -> None:
    conversations = Conversations(database, clock)
    asked = make_incoming(key=f"{ALICE}:{question}")
    await SqlInbox(database, clock).receive([asked], {})
    claim, message = await begin(conversations, LANE)
    parts = [OutgoingPart(part, MessageContent(text)) for part, text in enumerate(texts)]
    await conversations.finish(claim, message, TurnResult(outgoing=parts))


@pytest.mark.parametrize("seconds", [12, 31])
async def test_send_interrupted_by_a_pause_of_the_process_appears_once(
    rig: Rig, surface: Surface, database: Database, seconds: float
) -> None:
    clock = LeapingClock()
    stopped = Process("stopped", database, surface, clock)
    other = Process("other", database, surface, clock)
    question = rig.telegram.say(ALICE, "question")["message_id"]
    await queue(database, clock, question, "answer")

    async def stand_still() -> None:
        await clock.advance(seconds)
        await other.work()  # its lease lasts for 20 s; then the message is looked for, and sent

    stopped.rates.meanwhile = stand_still
    await stopped.work()

    assert rig.telegram.texts(ALICE) == ["answer"]
    assert len(rig.calls("sendMessage")) == 1


@pytest.mark.parametrize("file", [None, Attachment("notes.txt", "words")])
async def test_message_is_not_sent_after_its_deadline(
    rig: Rig, surface: Surface, file: Attachment | None
) -> None:
    rig.telegram.say(ALICE, "question")
    message = OutgoingMessage(
        Address("telegram", str(ALICE)), MessageContent("answer"), "nonce", file=file
    )
    with send_only_if(lambda: False), pytest.raises(Unreachable):
        await surface.send(message)
    assert not rig.telegram.texts(ALICE)
    await surface.send(message)
    assert len(rig.telegram.texts(ALICE)) == 1


@pytest.mark.parametrize("meanwhile", ["", "before", "chatter"])
async def test_message_that_telegram_accepts_late_appears_once(
    rig: Rig, surface: Surface, database: Database, meanwhile: str
) -> None:
    clock = LeapingClock()
    process = Process("one", database, surface, clock)
    question = rig.telegram.say(ALICE, "question")["message_id"]
    await queue(database, clock, question, "answer", "part")
    rig.telegram.fault("sendMessage", drop=True)  # its connection breaks before it is accepted
    await process.work()
    [given_up] = rig.calls("sendMessage")

    async def accept() -> None:
        await rig.telegram._call(METHODS["sendmessage"], given_up, {})

    await clock.advance(SETTLE_SECONDS)
    if meanwhile == "before":  # between the search and the repetition

        async def accept_first() -> None:
            process.rates.meanwhile = accept

        process.rates.meanwhile = accept_first
    await process.work()
    if meanwhile == "before":
        assert rig.telegram.texts(ALICE) == ["answer", "answer", "part"]
    else:
        if meanwhile == "chatter":
            for _ in range(20):
                rig.telegram.say(ALICE, "and another question")
        await accept()
        assert rig.telegram.texts(ALICE) == ["answer", "part", "answer"]

    woken: list[str] = []
    search = asyncio.create_task(process.sender.late_duplicate_remover.run(woken.extend))
    await wait_until(lambda: bool(woken))
    search.cancel()
    await asyncio.wait([search])
    assert rig.telegram.texts(ALICE) == ["answer", "part"]
    assert len(rig.calls("deleteMessage")) == 1
