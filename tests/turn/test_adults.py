"""Test in which channels presets for adults answer, and the notices in other channels."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import ChatJoin, IncomingMessage, WakeReason
from bot.commands.privacy import export_messages
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from tests.fakes import LIMITS
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, pressed

NEMO = {"name": "nemo", "adults_only": True, "greeting": "Well, hello."}
NORA: dict[str, Any] = {"name": "nora", "provider": "p", "model": "m"}
ASKED = "⚠ nemo is for adults only. Are you 18 or older?"
RESTRICTED = (
    "⚠ nemo is for adults only: it answers only in age-restricted channels, and this channel is not"
    " age-restricted."
)
GROUP = "⚠ nemo is for adults only. To use it here, an admin has to write /access adult on."


def private(text: str, key: str = "5:1") -> IncomingMessage:
    return replace(make_incoming(text, key=key), is_private=True)


def in_group(text: str, key: str = "5:1", **changes: Any) -> IncomingMessage:
    return replace(make_incoming(text, key=key, wake=WakeReason.MENTION), **changes)


@pytest.mark.parametrize(("mark", "told"), [(False, RESTRICTED), (None, GROUP)])
async def test_notice_says_why_a_preset_for_adults_does_not_answer(
    database: Database, mark: bool | None, told: str
) -> None:
    setup = Setup(database, ["Welcome."], preset=NEMO | {"wake": {"always": True}})
    await setup.say(in_group("Hi", is_age_restricted=mark))
    assert setup.texts == [told]
    await setup.say(in_group("Hi", "5:2", is_age_restricted=mark, wake=None))
    await setup.say(in_group("Hi", "5:3", is_age_restricted=mark, wake=None))
    assert setup.texts == [told] * 2, "who asked nothing is told rarely"
    assert setup.backend.prompts == []
    await setup.say(in_group("Hi", "5:4", is_age_restricted=True))
    assert setup.texts[2:] == ["Well, hello.", "Welcome."]


async def test_admins_of_a_group_decide_if_the_platform_has_no_age_restriction(
    database: Database,
) -> None:
    setup = Setup(database, ["Welcome."], preset={**NEMO, "greeting": None})
    await setup.say(in_group("/access adult on", "5:8", is_age_restricted=False))
    assert setup.texts.pop().startswith("⚠ On this platform, you mark")
    await setup.say(in_group("/access adult on", "5:9", author=BOB))
    assert setup.texts[-1].startswith("⚠ Only an admin")
    await setup.say(in_group("/access adult on", "5:10"))
    setup.surface.messages.clear()
    await setup.say(in_group("Hi", is_age_restricted=False))
    assert setup.texts == [RESTRICTED]
    await setup.say(in_group("Hi", "5:2"))
    assert setup.texts == [RESTRICTED, "Welcome."]
    await setup.say(in_group("/access adult off", "5:11"))
    await setup.say(pressed(ButtonAction.RETRY, "telegram:5:2/0"))
    assert setup.texts[1:] == ["Welcome.", "Presets for adults are now off here.", GROUP]


async def test_question_waits_until_its_author_has_confirmed_their_age(database: Database) -> None:
    setup = Setup(database, ["Welcome."], ["Again."], preset=NEMO)
    await setup.say(private("Hi"))
    assert setup.texts == [ASKED]
    press = replace(pressed(ButtonAction.CONFIRM_AGE, "telegram:5:1/0"), is_private=True)
    assert await setup.buttons.find_refusal_reason(replace(press, author=BOB)) is not None
    await Setup(database, preset=NEMO).receive(press)  # it is done by another process
    await setup.work()
    assert setup.texts[-1] == "Welcome."
    assert ASKED not in setup.texts
    data = PersonalData(database, setup.clock)
    words, *counts = await export_messages(data, ALICE.id, press.at)
    assert (json.loads(words.text)["confirmed_age"], counts) == (True, [1, 1])
    await setup.say(private("More", "5:2"))
    assert setup.texts[-1] == "Again."
    forget = pressed(ButtonAction.FORGET, "telegram:5:3/0", key="2")
    await setup.say(private("/forget me", "5:3"), replace(forget, is_private=True))
    assert not (await data.export(ALICE.id))["confirmed_age"]
    await setup.say(private("Hi", "5:4"))
    assert setup.texts[-1] == ASKED


async def test_retry_of_an_earlier_answer_asks_for_age_confirmation(database: Database) -> None:
    before = Setup(database, ["Ahoy."], preset={"name": "nemo"})
    await before.say(private("Hi"))
    limits, preset = replace(LIMITS, has_buttons=True), {**NEMO, "greeting": None}
    setup = Setup(database, ["Welcome."], preset=preset, limits=limits)
    retry = pressed(ButtonAction.RETRY, "telegram:5:1/0", key="2")
    await setup.say(replace(retry, is_private=True))
    [asked] = setup.surface.contents
    assert asked.text == ASKED
    [button] = asked.buttons
    confirm = replace(retry, external_key="3", data=button.data)
    await setup.say(replace(confirm, is_private=True))
    assert await setup.history() == [("user", "Hi"), ("assistant", "Welcome.")]


async def test_preset_use_command_refuses_a_preset_that_would_not_answer(
    database: Database,
) -> None:
    setup = Setup(database, ["Welcome."], others=[NORA | NEMO])
    await setup.say(in_group("/preset use nemo", is_age_restricted=False))
    told = RESTRICTED.removeprefix("⚠ ")
    assert setup.texts == [f"nemo answers here from now on.\n{told}"]
    await setup.say(private("/preset use nemo", "5:2"))
    asked = ASKED.removeprefix("⚠ ")
    assert setup.texts[1:] == [f"nemo answers here from now on.\n{asked}"]
    press = pressed(ButtonAction.CONFIRM_AGE, "telegram:5:2/0")
    await setup.say(replace(press, is_private=True))
    assert setup.texts[1].startswith("Thank you.")
    await setup.say(private("/new", "5:3"))
    assert setup.texts[-1].endswith("Well, hello.")


async def test_other_characters_answer_if_one_is_adults_only(database: Database) -> None:
    setup = Setup(database, ["Hello."], others=[NORA | NEMO])
    await setup.say(in_group("/preset add nemo", "5:1"), in_group("nora and nemo, hi", "5:2"))
    assert setup.texts[1:] == ["Hello."]


async def test_group_is_told_why_an_adults_only_preset_does_not_greet(database: Database) -> None:
    setup = Setup(database, preset=NEMO)
    said = in_group("")
    joined = ChatJoin(said.address, "join:5", None, said.at, said.scopes)
    await setup.say(joined)
    [text] = setup.texts
    assert text.startswith(GROUP.removeprefix("⚠ "))
