"""A question that is asked again is asked with its files; only where they are is kept."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select, update
from typing_extensions import override

from bot.chat.command import ButtonAction, ButtonData
from bot.chat.incoming import Address, Edited, Incoming, MediaItem, MediaKind, Pressed, Quote, Said
from bot.chat.session import Turn, with_kept_files
from bot.errors import BackendUnavailable, PlatformError
from bot.storage.database import Database
from bot.storage.tables import turn
from bot.turn.message_groups import user_turn
from tests.fakes import FakeBackend, FakeSurface
from tests.media.file_samples import picture
from tests.samples import ALICE, make_incoming
from tests.turn.setup import Setup

DISCORD = MediaItem(
    MediaKind.IMAGE, "cat.png", 70, "https://cdn.discordapp.com/attachments/1/2/cat.png?ex=1&hm=2"
)
TELEGRAM = MediaItem(MediaKind.IMAGE, "", 70, "AgACAgIAAxkBAAIB")
NOTES = MediaItem(MediaKind.FILE, "notes.txt", 9, "notes")
CONTENTS = {DISCORD.source: picture(), TELEGRAM.source: picture(), NOTES.source: b"milk\neggs"}
STORED = select(turn.c.files).order_by(turn.c.id)


class SeeingFakeBackend(FakeBackend):
    @override
    def sees_images(self, model: str) -> bool:
        return model == "m"


async def download(_address: Address, item: MediaItem, max_bytes: int) -> bytes:
    return CONTENTS[item.source][:max_bytes]


def question(*files: MediaItem, text: str = "what is it?", key: str = "5:70") -> Said:
    return replace(make_incoming(text, key=key), attachments=files)


def press(asked: Said) -> Incoming:
    part = f"telegram:{asked.external_key}/0"
    data = ButtonData(ButtonAction.RETRY, part, 0).encode()
    at, scopes = asked.at, asked.scopes
    return Pressed(asked.address, "cb1", "900", ALICE, data, at, scopes, interaction="77")


def command(_asked: Said) -> Incoming:
    return make_incoming("/retry", key="5:71")


def from_here(asked: Said) -> Incoming:
    said = make_incoming("/retry", key="5:71")
    return replace(said, quote=Quote(None, asked.message_id, ""))


def edit(asked: Said) -> Incoming:
    said = make_incoming("/edit who is it?", key="5:71")
    return replace(said, quote=Quote(None, asked.message_id, ""))


def platform_edit(asked: Said) -> Incoming:
    return Edited("5:70:e1", replace(asked, text="who is it?"), asked.at)


async def stored_files(database: Database) -> list[str | None]:
    return list(await database.read(lambda c: c.execute(STORED).scalars().all()))


def make_setup(
    database: Database, *answers: str | Exception, surface: FakeSurface | None = None
) -> Setup:
    backend = SeeingFakeBackend(*([one] for one in answers))
    return Setup(database, backend=backend, download=download, surface=surface)


@pytest.mark.parametrize(("again", "file"), [(press, DISCORD), (command, TELEGRAM)])
async def test_question_is_asked_again_with_its_picture(
    database: Database, again: Callable[[Said], Incoming], file: MediaItem
) -> None:
    setup = make_setup(database, "one", "two")
    asked = question(file)
    await setup.say(asked, again(asked))
    assert [len(one.messages[-1].images) for one in setup.backend.prompts] == [1, 1]
    [(_, text), _] = await setup.history()
    assert text == f"what is it?\n[picture{' ' + file.name if file.name else ''}]"


@pytest.mark.parametrize("again", [press, command, from_here, edit, platform_edit])
async def test_question_is_asked_again_with_its_text_file(
    database: Database, again: Callable[[Said], Incoming]
) -> None:
    setup = make_setup(database, "one", "two", "three")
    asked = question(NOTES)
    await setup.say(asked)
    await setup.say(again(asked))
    await setup.say(make_incoming("/retry", key="5:72"))
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert [one.startswith("[file notes.txt]\n> milk\n> eggs\n\n") for one in contents] == [
        True
    ] * 3
    assert [one.count("[file notes.txt]") for one in contents] == [2] * 3


@pytest.mark.parametrize("again", [press, command])
async def test_question_whose_answer_failed_is_asked_again_with_its_file(
    database: Database, again: Callable[[Said], Incoming]
) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    setup = make_setup(database, away, "two", "three")
    asked = question(NOTES)
    await setup.say(asked, again(asked))
    await setup.say(make_incoming("/retry", key="5:72"))
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert [one.count("> milk\n> eggs\n") for one in contents] == [1, 1, 1]
    assert await setup.history() == [
        ("user", "what is it?\n[file notes.txt]"),
        ("assistant", "three"),
    ]


def test_question_is_asked_again_with_the_files_of_what_was_gathered_with_it() -> None:
    asked, at = question(), question().at
    session = [
        Turn("user", "old", ALICE, at, files=(TELEGRAM,)),
        Turn("assistant", "answer", None, at, "nora"),
        Turn("user", "[file notes.txt]", ALICE, at, files=(NOTES,)),
        Turn("user", asked.text, ALICE, at, message_id="70"),
    ]
    assert with_kept_files(asked, session[-1], session[:-1]).earlier_files == (NOTES,)
    gathered = replace(asked, earlier_files=(NOTES,))
    assert user_turn(gathered).files == ()  # they are kept with the message that they came with
    assert user_turn(question(NOTES)).files == (NOTES,)


@pytest.mark.parametrize("again", [press, command])
async def test_file_that_is_gone_is_named_and_the_question_answered_without_it(
    database: Database, again: Callable[[Said], Incoming]
) -> None:
    is_gone = False

    async def expiring(address: Address, item: MediaItem, max_bytes: int) -> bytes:
        if is_gone:
            raise PlatformError("the server answered 404")
        return await download(address, item, max_bytes)

    setup = Setup(database, backend=SeeingFakeBackend(["one"], ["two"]), download=expiring)
    asked = question(NOTES)
    await setup.say(asked)
    is_gone = True
    await setup.say(again(asked))
    assert "milk" not in setup.backend.prompts[-1].messages[-1].content
    notice = "⚠ I could not read notes.txt: it could not be downloaded."
    assert setup.texts[-1] == f"two\n\n{notice}"


async def test_question_of_an_older_version_is_asked_again_without_files(
    database: Database,
) -> None:
    setup = make_setup(database, "one", "two")
    asked = question(NOTES)
    await setup.say(asked)
    await database.write(lambda c: c.execute(update(turn).values(files=None)).rowcount)
    setup = make_setup(database, "two", surface=setup.surface)  # nothing is cached
    await setup.say(press(asked))
    assert setup.texts == ["two"]
    assert "milk" not in setup.backend.prompts[-1].messages[-1].content


async def test_what_another_version_has_stored_is_left_out(database: Database) -> None:
    setup = make_setup(database, "one")
    asked = question(NOTES)
    await setup.say(asked)
    unknown = '[{"kind":"hologram","source":"1"}]'
    await database.write(lambda c: c.execute(update(turn).values(files=unknown)).rowcount)
    setup = make_setup(database, "two", surface=setup.surface)
    await setup.say(press(asked))
    assert setup.texts == ["two"]


async def test_picture_that_an_edit_takes_away_is_not_asked_with_again(database: Database) -> None:
    setup = make_setup(database, "one", "two", "three")
    asked = question(NOTES)
    await setup.say(asked)
    await setup.say(Edited("5:70:e1", replace(asked, attachments=()), asked.at))
    await setup.say(make_incoming("/retry", key="5:72"))
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert ["> milk" in one for one in contents] == [True, False, False]
    assert set(await stored_files(database)) == {None}


async def test_only_where_the_files_are_is_kept_and_only_of_questions(database: Database) -> None:
    setup = make_setup(database, "one")
    shown = replace(question(DISCORD, key="5:69"), wake=None)
    sticker = MediaItem(MediaKind.STICKER, "wave", None, "sticker")
    await setup.say(shown, question(NOTES, sticker))
    [background, asked, answer] = await stored_files(database)
    assert (background, answer) == (None, None)
    assert asked == '[{"kind":"file","name":"notes.txt","size":9,"source":"notes"}]'


@pytest.mark.parametrize("forget", ["/forget", "/forget last"])
async def test_forget_deletes_where_the_files_are(database: Database, forget: str) -> None:
    setup = make_setup(database, "one")
    await setup.say(question(NOTES))
    assert [one is not None for one in await stored_files(database)] == [True, False]
    await setup.say(make_incoming(forget, key="5:71"))
    assert await stored_files(database) == []
