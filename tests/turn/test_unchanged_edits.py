"""No message is edited to what it shows already."""

import asyncio
from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import MessageContent, OutgoingMessage
from bot.errors import OutcomeUnknown
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeSurface
from tests.turn.setup import Setup, running_worker
from tests.waiting import PATIENCE_SECONDS, advance_in_steps

PARTS = ["x" * 30, "y" * 30, "z" * 30]
LONG = "\n\n".join(PARTS)


class WatchedSurface(FakeSurface):
    """Counts the edits of each message, and those that change nothing."""

    def __init__(self) -> None:
        super().__init__(replace(LIMITS, max_units=40))
        self.shown: dict[str, MessageContent] = {}
        self.unchanged = 0
        self.edits = 0

    @override
    async def send(self, message: OutgoingMessage) -> str:
        message_id = await super().send(message)
        self.shown[message_id] = message.content
        return message_id

    @override
    async def edit(
        self,
        address: Address,
        message_id: str,
        content: MessageContent,
        *,
        interaction: str | None = None,
    ) -> None:
        await super().edit(address, message_id, content, interaction=interaction)
        self.edits += 1
        self.unchanged += self.shown[message_id] == content
        self.shown[message_id] = content


async def answer(
    database: Database, *script: str | asyncio.Event, surface: WatchedSurface | None = None
) -> WatchedSurface:
    """Have an answer written; an event is set when what precedes it has been shown."""
    surface = surface or WatchedSurface()
    setup = Setup(database, script, surface=surface)
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        for gate in (one for one in script if isinstance(one, asyncio.Event)):
            for _ in range(5):
                await advance_in_steps(setup.clock, 2)
            gate.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker
    await setup.finish_sending()
    assert setup.texts == PARTS[: len(setup.texts)]
    assert "\n\n".join(setup.texts) == "".join(one for one in script if isinstance(one, str))
    return surface


async def test_parts_that_were_opened_whole_are_not_edited(database: Database) -> None:
    surface = await answer(database, LONG, asyncio.Event())
    assert surface.edits == 0


async def test_parts_that_grew_are_not_edited_again_in_the_end(database: Database) -> None:
    surface = await answer(database, LONG[:10], asyncio.Event(), LONG[10:], asyncio.Event())
    assert (surface.edits, surface.unchanged) == (1, 0)


async def test_part_that_grew_behind_its_last_edit_is_edited_in_the_end(
    database: Database,
) -> None:
    surface = await answer(database, LONG[:40], asyncio.Event(), LONG[40:])
    assert surface.edits == 1
    assert surface.unchanged == 0


async def test_edit_whose_outcome_is_unknown_is_repeated_in_the_end(database: Database) -> None:
    surface = WatchedSurface()
    surface.fail_next("edit", *[OutcomeUnknown("cut off")] * 3)  # then live edits end
    await answer(
        database, LONG[:10], asyncio.Event(), PARTS[0][10:], asyncio.Event(), surface=surface
    )
    assert (surface.edits, surface.unchanged) == (1, 0)
