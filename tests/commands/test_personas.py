"""People say who they are, and it is theirs alone."""

from dataclasses import replace

import pytest

from bot.commands.personas import People
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.database import Database
from tests.samples import ALICE, BOB, incoming

HERE = replace(incoming(), scopes=("telegram:5:7", "telegram:5"))
ELSEWHERE = replace(incoming(), scopes=("telegram:6",))


@pytest.fixture
def people(database: Database) -> People:
    return People(SqlChatSettings(database, SystemClock()))


async def known(people: People, scopes: tuple[str, ...] = HERE.scopes) -> dict[str, str]:
    return await people.personas([ALICE.id, BOB.id, ALICE.id], scopes)


async def test_a_persona_holds_where_it_was_said(people: People) -> None:
    assert await people.me("I am a tall knight", HERE) == "You are, here: I am a tall knight"

    assert await known(people) == {ALICE.id: "I am a tall knight"}
    assert await known(people, ELSEWHERE.scopes) == {}
    assert await people.me("", HERE) == "You are: I am a tall knight"
    with pytest.raises(UserError, match="I do not know who you are"):
        await people.me("", ELSEWHERE)


async def test_what_holds_everywhere_gives_way_to_what_was_said_here(people: People) -> None:
    await people.me("Everywhere I am a cook", ELSEWHERE)
    await people.me("a knight", HERE)
    await people.me("a smith", replace(HERE, author=BOB))

    assert await known(people) == {ALICE.id: "a knight", BOB.id: "a smith"}
    assert await known(people, ("telegram:9",)) == {ALICE.id: "I am a cook"}


async def test_what_the_channel_knows_its_threads_know(people: People) -> None:
    await people.me("a knight", replace(HERE, scopes=("telegram:5",)))

    assert await known(people) == {ALICE.id: "a knight"}


async def test_clear_forgets(people: People) -> None:
    await people.me("everywhere a cook", HERE)
    await people.me("a knight", HERE)

    assert await people.me("clear", HERE) == "I no longer know who you are here."
    assert await known(people) == {ALICE.id: "a cook"}
    assert await people.me("everywhere clear", HERE)
    assert await known(people) == {}
