"""Test that an album, or a long paste that the client split, is treated as one message."""

import asyncio
from dataclasses import replace

import pytest

from bot.chat.incoming import IncomingMessage, MediaItem, MediaKind, Person, WakeReason
from bot.storage.database import Database
from bot.turn.claims import LEASE_SECONDS
from tests.fakes import LIMITS
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.busy_channel import answer_all, end
from tests.turn.setup import CHAT, FILES, SeeingFakeBackend, Setup, answering, download, working
from tests.waiting import wait_until

SMALL = replace(LIMITS, max_units=200, unit="utf16")
LONG = "word " * 40  # as long as a message can be


def picture_of(
    number: int, caption: str = "", *, wake: WakeReason | None = None, album: str | None = "a"
) -> IncomingMessage:
    """Return a picture message in a group, by default part of an album."""
    FILES[f"p{number}"] = FILES["cat"]
    item = MediaItem(MediaKind.IMAGE, f"{number}.png", None, f"p{number}")
    said = make_incoming(caption, key=f"5:{number}", wake=wake)
    return replace(said, attachments=(item,), album=album)


def text(
    number: int, what: str, author: Person = ALICE, *, mention: bool = True
) -> IncomingMessage:
    wake = WakeReason.MENTION if mention else None
    return make_incoming(what, key=f"5:{number}", author=author, wake=wake)


def album_setup(database: Database, **preset: object) -> Setup:
    backend = SeeingFakeBackend(["Two cats."], ["Bye."])
    return Setup(database, backend=backend, download=download, preset=preset)


async def test_album_with_the_caption_on_its_last_picture_is_complete(database: Database) -> None:
    setup = album_setup(database)
    last = picture_of(2, "@nora look", wake=WakeReason.MENTION)
    await answer_all(setup, picture_of(1), last)
    [prompt] = setup.backend.prompts
    assert len(prompt.messages[-1].images) == 2
    assert setup.texts == ["Two cats."]


@pytest.mark.parametrize(("captions", "replied_to"), [(["", "look", ""], "2"), (["", "", ""], "1")])
async def test_answer_to_an_album_replies_to_the_captioned_picture(
    database: Database, captions: list[str], replied_to: str
) -> None:
    setup = album_setup(database)
    pictures = [
        replace(picture_of(at, what, wake=WakeReason.DM), message_id=str(at))
        for at, what in enumerate(captions, 1)
    ]
    await answer_all(setup, *pictures)
    assert [one.reply_to for one in setup.surface.sent] == [replied_to]


async def test_album_that_arrives_during_an_answer_stays_together(database: Database) -> None:
    go_on = asyncio.Event()
    backend = SeeingFakeBackend([go_on, "First."], ["Two cats."])
    limits = replace(LIMITS, answers_each_message=False)
    setup = Setup(database, backend=backend, download=download, limits=limits)
    async with answering(setup, text(1, "hello")) as worker:
        await setup.clock.advance(2)
        asked = picture_of(2, "what are they?", wake=WakeReason.MENTION)
        await setup.receive(asked, text(3, "hm", BOB), picture_of(4))
        go_on.set()
        await end(setup, worker)
    first, second = backend.prompts
    assert (len(first.messages[-1].images), len(second.messages[-1].images)) == (0, 2)
    assert [one.content for one in second.messages[-2:]] == [
        "Alice:what are they?\n[picture 2.png]\n[picture 4.png]",
        "Bob:hm",
    ]
    assert setup.texts == ["First.", "Two cats."]


async def test_album_that_waited_during_a_crash_is_answered_as_a_whole(database: Database) -> None:
    setup = album_setup(database)
    mention = WakeReason.MENTION
    await setup.receive(picture_of(1, "what are they?", wake=mention))
    assert await setup.conversations.claim_next([CHAT], "a process that dies", LEASE_SECONDS)
    await setup.clock.advance(LEASE_SECONDS + 1)
    await answer_all(setup, picture_of(2), picture_of(3))
    assert [len(one.messages[-1].images) for one in setup.backend.prompts] == [3]


async def test_two_albums_and_a_single_picture_are_three_messages(database: Database) -> None:
    setup = album_setup(database, busy="queue")
    mention = WakeReason.MENTION
    one, other = picture_of(1, "a", wake=mention), picture_of(2, "b", wake=mention, album="b")
    single = picture_of(3, "c", wake=mention, album=None)
    await answer_all(setup, one, other, single)
    assert [len(one.messages[-1].images) for one in setup.backend.prompts] == [1, 1, 1]


async def test_key_split_over_two_messages_is_masked_with_a_warning(database: Database) -> None:
    setup = Setup(database, ["Long."], limits=SMALL)
    begun = f"{LONG[:-12]} sk-proj-CAN"
    async with working(setup, text(1, begun)) as worker:
        await setup.receive(text(2, "ARY00000000000000001 ok?", mention=False))
        await end(setup, worker)
    masked = f"{LONG[:-12]} ***0001 ok?"
    assert setup.backend.prompts[0].messages[-1].content == masked
    assert await setup.history() == [("user", masked), ("assistant", "Long.")]
    assert setup.texts[0] == "Long."
    assert setup.texts[1].startswith("⚠ Your message seems to contain a token")


async def test_split_paste_ends_when_somebody_else_writes_or_time_is_up(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, "Long."], ["No."], ["Late."], limits=SMALL)
    async with working(setup, text(1, LONG)) as worker:
        await setup.receive(text(2, "bob", BOB))
        await setup.clock.advance(1.6)
        await wait_until(lambda: len(setup.backend.prompts) >= 1)
        await setup.receive(text(3, "late"))
        go_on.set()
        await end(setup, worker)
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert contents == [LONG, "Bob:bob", "Alice:late"]


async def test_ordinary_message_does_not_wait_for_more_parts(database: Database) -> None:
    setup = Setup(database, ["Hi."], limits=SMALL)
    began = setup.clock.now()
    await setup.say(text(1, "short"))
    assert (setup.texts, setup.clock.now()) == (["Hi."], began)
