"""Test /me: the channels to which a person's description applies."""

from dataclasses import replace

import pytest

from bot.commands.personas import UserPersonas
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from tests.samples import ALICE, BOB, make_incoming

HERE = replace(make_incoming(), scopes=("telegram:5:7", "telegram:5"))
ELSEWHERE = replace(make_incoming(), scopes=("telegram:6",))


@pytest.fixture
def personas(database: Database) -> UserPersonas:
    return UserPersonas(SqlChatSettings(database, SystemClock()))


async def resolve(personas: UserPersonas, scopes: tuple[str, ...] = HERE.scopes) -> dict[str, str]:
    return await personas.find_all([ALICE.id, BOB.id, ALICE.id], scopes)


async def test_persona_applies_only_in_its_channel(personas: UserPersonas) -> None:
    assert await personas.run_me_command("I am a tall knight", HERE) == (
        "Your description for this channel was saved: I am a tall knight"
    )

    assert await resolve(personas) == {ALICE.id: "I am a tall knight"}
    assert await resolve(personas, ELSEWHERE.scopes) == {}
    assert await personas.run_me_command("", HERE) == "Your description here: I am a tall knight"
    with pytest.raises(UserError, match="You haven't described yourself"):
        await personas.run_me_command("", ELSEWHERE)


async def test_channel_persona_overrides_the_global_persona(personas: UserPersonas) -> None:
    await personas.run_me_command("Everywhere I am a cook", ELSEWHERE)
    await personas.run_me_command("a knight", HERE)
    await personas.run_me_command("a smith", replace(HERE, author=BOB))

    assert await resolve(personas) == {ALICE.id: "a knight", BOB.id: "a smith"}
    assert await resolve(personas, ("telegram:9",)) == {ALICE.id: "I am a cook"}


async def test_threads_inherit_the_persona_of_the_channel(personas: UserPersonas) -> None:
    await personas.run_me_command("a knight", replace(HERE, scopes=("telegram:5",)))

    assert await resolve(personas) == {ALICE.id: "a knight"}


async def test_me_clear_deletes_the_persona(personas: UserPersonas) -> None:
    await personas.run_me_command("everywhere a cook", HERE)
    await personas.run_me_command("a knight", HERE)

    assert (
        await personas.run_me_command("clear", HERE)
        == "Your description for this channel was deleted."
    )
    assert await resolve(personas) == {ALICE.id: "a cook"}
    assert await personas.run_me_command("everywhere clear", HERE)
    assert await resolve(personas) == {}
