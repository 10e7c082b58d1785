"""Where notes for admins stand: in a channel of theirs, under the answer, or nowhere."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.command import Command
from bot.chat.incoming import Said
from bot.chat.outgoing import OutgoingMessage
from bot.commands.notes.admin_notes import AdminNotes
from bot.commands.request import CommandRequest
from bot.errors import Unreachable, UserError
from bot.prompting.presets.preset import Preset
from bot.routing.command_specs import parse
from bot.routing.preset_resolver import PresetResolver
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.database import Database
from bot.texts.text import translatable
from tests.fakes import FakeClock, FakeSurface
from tests.samples import make_incoming

NOTE = translatable("⚠ A model fails.")


def said(chat: str, scopes: Sequence[str] | None = None) -> Said:
    incoming = make_incoming("hi", key=f"{chat}:1", chat=chat)
    return replace(incoming, scopes=tuple(scopes or (f"telegram:{chat}", "guild:1")))


class RecordingSurface(FakeSurface):
    """Also remembers where messages were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[OutgoingMessage] = []

    @override
    async def send(self, message: OutgoingMessage) -> str:
        message_id = await super().send(message)
        self.sent.append(message)
        return message_id


class Notes:
    def __init__(self, database: Database) -> None:
        self.surface = RecordingSurface()
        settings = SqlChatSettings(database, FakeClock())
        self.notes = AdminNotes(settings, {"telegram": self.surface})
        preset = Preset.model_validate({"name": "a", "provider": "p", "model": "m"})
        self._resolver = PresetResolver({"a": preset}, "a", settings, {})

    async def choose(self, value: str, where: Said) -> None:
        command = parse(f"/settings notes {value}")
        assert isinstance(command, Command)
        active = await self._resolver.resolve(where.scopes)
        await self.notes.choose(CommandRequest(command, where, active, (), where.at))


@pytest.fixture
def notes(database: Database) -> Notes:
    return Notes(database)


async def test_note_stands_under_the_answer_by_default(notes: Notes) -> None:
    assert not await notes.notes.take_over(said("5"), NOTE)


async def test_notes_of_a_server_go_to_the_channel_of_its_admins(notes: Notes) -> None:
    await notes.choose("here", said("9"))
    assert await notes.notes.take_over(said("5"), NOTE)
    assert [one.text for one in notes.surface.sent] == ["telegram:5: ⚠ A model fails."]
    assert [one.address.chat for one in notes.surface.sent] == ["9"]
    assert not await notes.notes.take_over(said("6", ["telegram:6", "guild:2"]), NOTE)
    assert not await notes.notes.take_over(said("9"), NOTE)  # under the answer there


async def test_channel_without_notes(notes: Notes) -> None:
    await notes.choose("here", said("9"))
    await notes.choose("off", said("5"))
    assert await notes.notes.take_over(said("5"), NOTE)
    assert notes.surface.sent == []
    await notes.choose("inherit", said("5"))
    assert not await notes.notes.take_over(said("5"), NOTE)


async def test_note_that_cannot_be_sent_stops_no_answer(notes: Notes) -> None:
    await notes.choose("here", said("9"))
    notes.surface.fail_next("send", Unreachable("away"))
    assert await notes.notes.take_over(said("5"), NOTE)


async def test_other_values_are_refused(notes: Notes) -> None:
    with pytest.raises(UserError, match="/settings notes here"):
        await notes.choose("there", said("5"))
