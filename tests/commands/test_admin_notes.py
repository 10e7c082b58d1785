"""Who reads notes for admins: a channel of theirs, they in private, everybody, or nobody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bot.chat.command import Command
from bot.chat.incoming import Person, Request, Said
from bot.commands.request import CommandRequest
from bot.errors import PlatformError, Refused, Unreachable, UserError
from bot.storage.database import Database
from bot.texts.text import translatable
from tests.fakes import FakeSurface, PrivatePlatform
from tests.samples import make_incoming
from tests.turn.setup import Setup

NOTE = translatable("⚠ A model fails.")


def said(chat: str, scopes: Sequence[str] | None = None) -> Said:
    incoming = make_incoming("hi", key=f"{chat}:1", chat=chat)
    return replace(incoming, scopes=tuple(scopes or (f"telegram:{chat}", "guild:1")))


class Notes:
    def __init__(self, database: Database, operators: Sequence[str] = ()) -> None:
        self.surface = FakeSurface()
        self.is_admin: bool | PlatformError = True
        """What the platform says of everybody."""
        self.asked_about: list[str] = []
        setup = Setup(
            database,
            surface=self.surface,
            settings={"admins": frozenset(operators)},
            platforms={"telegram": PrivatePlatform("telegram", self.surface)},
            is_platform_admin=self._ask,
        )
        self.clock, self._resolver = setup.clock, setup.resolver
        self.notes = setup.container.admin_notes

    async def _ask(self, asked: Request) -> bool:
        self.asked_about.append(asked.author.id)
        if isinstance(self.is_admin, PlatformError):
            raise self.is_admin
        return self.is_admin

    async def choose(self, value: str, where: Said) -> None:
        command = Command("settings notes", value)
        active = await self._resolver.resolve(where.scopes)
        await self.notes.choose(CommandRequest(command, where, active, (), where.at))

    async def take_over(self, where: Said) -> bool:
        """Send the note to its readers, if there are any; else it belongs under the answer."""
        readers = await self.notes.readers(where)
        return readers is not None and await self.notes.send(readers, where, NOTE)

    @property
    def sent_to(self) -> list[str]:
        return [one.address.chat for one in self.surface.sent]


@pytest.fixture
def notes(database: Database) -> Notes:
    return Notes(database)


async def test_note_stands_under_the_answer_without_operators(notes: Notes) -> None:
    assert not await notes.take_over(said("5"))


async def test_notes_of_a_server_go_to_the_channel_of_its_admins(notes: Notes) -> None:
    await notes.choose("here", said("9"))
    assert await notes.take_over(said("5"))
    assert [one.text for one in notes.surface.sent] == ["telegram:5: ⚠ A model fails."]
    assert notes.sent_to == ["9"]
    assert not await notes.take_over(said("6", ["telegram:6", "guild:2"]))
    assert not await notes.take_over(said("9"))  # under the answer there


async def test_notes_of_a_server_go_to_one_admin_in_private(notes: Notes) -> None:
    admin = said("9")
    await notes.choose("private", admin)
    assert await notes.take_over(said("5"))
    private = f"dm-{admin.author.id.removeprefix('telegram:')}"
    assert notes.sent_to == [private, private]  # the first one shows that it can be sent
    assert notes.surface.sent[0].text.startswith("Notes for admins of telegram:9")


async def test_admin_who_lost_their_rights_reads_no_more_notes(notes: Notes) -> None:
    await notes.choose("private", said("9"))
    assert await notes.take_over(said("5"))
    notes.is_admin = False
    await notes.clock.advance(31)  # what was asked holds for 30 s
    asked_before = len(notes.asked_about)
    assert not await notes.take_over(said("5")), "it stands under the answer, as before"
    assert not await notes.take_over(said("5"))
    assert len(notes.sent_to) == 2
    assert notes.asked_about[asked_before:] == [said("9").author.id]


async def test_nobody_reads_notes_in_private_while_the_platform_is_away(notes: Notes) -> None:
    await notes.choose("private", said("9"))
    notes.is_admin = Unreachable("away")
    assert await notes.take_over(said("5")), "not under the answer either"
    assert len(notes.sent_to) == 1


async def test_notes_go_to_no_admin_without_a_name(notes: Notes) -> None:
    as_group = replace(said("9"), author=Person("telegram:9", "Group"))
    with pytest.raises(UserError, match="under their own name"):
        await notes.choose("private", as_group)


async def test_admin_who_cannot_be_written_to_is_told(notes: Notes) -> None:
    notes.surface.fail_next("send", Refused("blocked"))
    with pytest.raises(UserError, match="I cannot write to you in private"):
        await notes.choose("private", said("9"))
    assert await notes.notes.readers(said("9")) is None


async def test_operators_read_notes_in_private_where_nothing_was_chosen(database: Database) -> None:
    notes = Notes(database, ["discord:1", "telegram:7", "telegram:8"])
    assert await notes.take_over(said("5"))
    assert notes.sent_to == ["dm-7", "dm-8"]
    notes.surface.fail_next("send", Refused("blocked"))
    assert await notes.take_over(said("5")), "one of them was reached"
    notes.surface.fail_next("send", Refused("blocked"), Refused("blocked"))
    assert not await notes.take_over(said("5")), "nobody was"


async def test_operator_reads_notes_under_the_answer_in_their_own_chat(database: Database) -> None:
    stranger = replace(said("5", ["telegram:5"]), is_private=True)
    notes = Notes(database, [stranger.author.id])
    assert await notes.notes.readers(stranger) is None
    notes = Notes(database, ["telegram:7"])
    assert await notes.notes.readers(stranger) == (None, ("telegram:7",))


async def test_channel_without_notes(notes: Notes) -> None:
    await notes.choose("here", said("9"))
    await notes.choose("off", said("5"))
    assert await notes.take_over(said("5"))
    assert notes.surface.sent == []
    await notes.choose("inherit", said("5"))
    assert not await notes.take_over(said("5"))


async def test_note_that_cannot_be_sent_stops_no_answer(notes: Notes) -> None:
    await notes.choose("here", said("9"))
    notes.surface.fail_next("send", Unreachable("away"))
    assert await notes.take_over(said("5"))


async def test_other_values_are_refused(notes: Notes) -> None:
    with pytest.raises(UserError, match="/settings notes here"):
        await notes.choose("there", said("5"))
