"""People say who they are, and it is theirs alone."""

from dataclasses import replace

import pytest

from bot.commands.personas import UserPersonas
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.database import Database
from tests.samples import ALICE, BOB, incoming

HERE = replace(incoming(), scopes=("telegram:5:7", "telegram:5"))
ELSEWHERE = replace(incoming(), scopes=("telegram:6",))


@pytest.fixture
def personas(database: Database) -> UserPersonas:
    return UserPersonas(SqlChatSettings(database, SystemClock()))


async def known(personas: UserPersonas, scopes: tuple[str, ...] = HERE.scopes) -> dict[str, str]:
    return await personas.resolve([ALICE.id, BOB.id, ALICE.id], scopes)


async def test_a_persona_holds_where_it_was_said(personas: UserPersonas) -> None:
    assert (
        await personas.handle_me("I am a tall knight", HERE) == "You are, here: I am a tall knight"
    )

    assert await known(personas) == {ALICE.id: "I am a tall knight"}
    assert await known(personas, ELSEWHERE.scopes) == {}
    assert await personas.handle_me("", HERE) == "You are: I am a tall knight"
    with pytest.raises(UserError, match="I do not know who you are"):
        await personas.handle_me("", ELSEWHERE)


async def test_what_holds_everywhere_gives_way_to_what_was_said_here(
    personas: UserPersonas,
) -> None:
    await personas.handle_me("Everywhere I am a cook", ELSEWHERE)
    await personas.handle_me("a knight", HERE)
    await personas.handle_me("a smith", replace(HERE, author=BOB))

    assert await known(personas) == {ALICE.id: "a knight", BOB.id: "a smith"}
    assert await known(personas, ("telegram:9",)) == {ALICE.id: "I am a cook"}


async def test_what_the_channel_knows_its_threads_know(personas: UserPersonas) -> None:
    await personas.handle_me("a knight", replace(HERE, scopes=("telegram:5",)))

    assert await known(personas) == {ALICE.id: "a knight"}


async def test_clear_forgets(personas: UserPersonas) -> None:
    await personas.handle_me("everywhere a cook", HERE)
    await personas.handle_me("a knight", HERE)

    assert await personas.handle_me("clear", HERE) == "I no longer know who you are here."
    assert await known(personas) == {ALICE.id: "a cook"}
    assert await personas.handle_me("everywhere clear", HERE)
    assert await known(personas) == {}
