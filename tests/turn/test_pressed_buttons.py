"""Test what buttons under answers and menus do, and who may press them."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bot.chat.command import ButtonAction, ButtonData, encode_button, parse_button
from bot.chat.incoming import Address, ButtonPress, Person, ThreadTitle
from bot.chat.outgoing import Menu, MessageContent
from bot.chat.prompt import Finish, FinishReason
from bot.errors import BackendUnavailable
from bot.intake import to_storable_event
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import FIRST, Setup, answering, pressed
from tests.waiting import advance_in_steps

CAROL = Person("telegram:3", "Carol")
MAX_DATA_BYTES = 64  # on Telegram
AWAY = BackendUnavailable("refused", notice="The model is away.")


@pytest.mark.parametrize("action", ButtonAction)
def test_button_data_fits_the_size_limit_and_can_be_parsed(action: ButtonAction) -> None:
    part = "telegram@7012345678:-1001234567890:1234567890:e1234567890/9999"
    number = 12 if action is ButtonAction.VERSION else 0
    data = encode_button(action, part, number)
    assert len(data.encode()) <= MAX_DATA_BYTES
    address = Address("telegram", "-1001234567890", None, "7012345678")
    press = ButtonPress(address, "cb1", "1", ALICE, data, datetime.now(UTC), ())
    assert parse_button(press) == ButtonData(action, part, number)


@pytest.mark.parametrize("data", ["", "noop", "retry", "retry:", "retry:5:1", "steal:5:1/0"])
def test_unknown_button_data_is_ignored(data: str) -> None:
    press = ButtonPress(Address("telegram", "5"), "cb1", "1", ALICE, data, datetime.now(UTC), ())
    assert parse_button(press) is None


async def test_earlier_versions_of_an_answer_can_be_shown_again(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"], ["three"], ["next"])
    await setup.say("a")
    for key in "12":
        await setup.clock.advance(1)
        await setup.say(pressed(ButtonAction.RETRY, key=key))
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="3"))
    assert setup.texts == ["one"]
    await setup.say(pressed(ButtonAction.VERSION, number=3, key="4"))
    assert setup.texts == ["three"]
    await setup.say(pressed(ButtonAction.VERSION, number=2, key="5"))
    assert setup.texts == ["two"]
    found = await setup.conversations.load_exchange_by_part("telegram:5", FIRST, 10)
    assert found is not None
    [versions] = found.versions
    assert [one.turn.text for one in versions] == ["one", "two", "three"]
    await setup.say("b")
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a", "two", "b"]


async def test_longer_version_is_shown_in_more_messages(database: Database) -> None:
    long = " ".join(map(str, range(700)))
    setup = Setup(database, [long], ["short"])
    await setup.say("a")
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    assert setup.texts == ["short"]
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert len(setup.texts) == 2
    await setup.say(pressed(ButtonAction.VERSION, number=2, key="3"))
    assert setup.texts == ["short"]
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="4"))
    assert " ".join(setup.texts).split() == long.split()


async def test_continue_button_asks_the_model_to_go_on(database: Database) -> None:
    cut = Finish(FinishReason.LENGTH)
    setup = Setup(database, ["Once", cut], [" upon a time."])
    await setup.say("a", pressed(ButtonAction.CONTINUE))
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a", "Once", "Go on."]
    assert len(setup.texts) == 2
    assert [role for role, _ in await setup.history()] == ["user", "assistant"] * 2


@pytest.mark.parametrize("action", [ButtonAction.RETRY, ButtonAction.CONTINUE])
async def test_prompt_after_a_button_press_has_the_thread_title(
    database: Database, action: ButtonAction
) -> None:
    setup = Setup(database, ["one"], ["two"])
    thread: dict[str, Any] = {"in_thread": True, "thread_title": ThreadTitle("Ferns", BOB.id)}
    asked = replace(make_incoming("a", key="5:1"), **thread)
    await setup.say(asked, replace(pressed(action), **thread))
    titles = [one.messages[-1].content.partition("\n\n")[0] for one in setup.backend.prompts]
    assert titles == ["[The title of this thread]\n> Ferns"] * 2


async def test_delete_button_removes_the_answer_and_its_versions(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a", pressed(ButtonAction.RETRY), pressed(ButtonAction.DELETE, key="2"))
    assert setup.texts == []
    assert await setup.history() == [("user", "a")]
    assert await setup.conversations.load_exchange_by_part("telegram:5", FIRST, 10) is None
    assert setup.memory.calls == ["forget telegram:5"]


async def test_press_by_another_person_is_refused_with_a_notice(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say("a")
    words = "Only the person who asked the question, or an admin, can use this button."
    for action in (ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.DELETE):
        press = pressed(action, by=BOB, key=action)
        assert await setup.buttons.find_refusal_reason(press) == words
        assert (
            await setup.buttons.find_refusal_reason(pressed(action, by=CAROL)) is None
        )  # an admin
        await setup.say(press)  # also if a platform could not ask
    assert setup.texts == ["one", *[f"⚠ Bob: {words}"] * 3]
    assert len(setup.backend.prompts) == 1


async def test_only_the_newest_answer_can_be_retried(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a", "b")
    refusal = await setup.buttons.find_refusal_reason(pressed(ButtonAction.RETRY))
    assert (
        refusal == "The conversation has moved on: this button works only under the newest answer."
    )
    assert await setup.buttons.find_refusal_reason(pressed(ButtonAction.DELETE)) is None


@pytest.mark.parametrize("action", [ButtonAction.RETRY, ButtonAction.CONTINUE])
@pytest.mark.parametrize("is_private", [False, True])
async def test_press_on_an_older_answer_gets_an_explanation(
    database: Database, action: ButtonAction, is_private: bool
) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a")
    press = replace(pressed(action), is_private=is_private, locale="en")
    assert (
        await setup.buttons.find_refusal_reason(press) is None
    )  # the newer question is not answered yet
    await setup.say("b", press)
    words = "The conversation has moved on: this button works only under the newest answer."
    assert setup.texts == ["one", "two", f"⚠ {words}" if is_private else f"⚠ Alice: {words}"]
    assert [text for _, text in await setup.history()] == ["a", "one", "b", "two"]


async def test_retry_of_a_failed_answer_works_after_a_restart(database: Database) -> None:
    backend = FakeBackend([AWAY], [AWAY], ["Here it is."], ["Better."])
    setup = Setup(database, backend=backend)
    await setup.say("a")
    [notice] = setup.texts
    assert notice.startswith("⚠ The model is away. (error ")
    assert await setup.history() == []
    restarted = Setup(database, backend=backend, surface=setup.surface)
    assert (
        await restarted.buttons.find_refusal_reason(pressed(ButtonAction.RETRY, by=BOB)) is not None
    )
    await restarted.say(pressed(ButtonAction.RETRY))
    [again] = restarted.texts
    assert again.startswith("⚠ The model is away. (error ")
    assert again != notice
    await restarted.say(pressed(ButtonAction.RETRY, key="2"))
    assert restarted.texts == ["Here it is."]
    assert await restarted.history() == [("user", "a"), ("assistant", "Here it is.")]
    await restarted.say(pressed(ButtonAction.RETRY, key="3"))
    assert restarted.texts == ["Better."]


async def test_question_that_failed_is_not_answered_twice(database: Database) -> None:
    setup = Setup(database, [AWAY], ["Here it is."])
    await setup.say("a", "/retry", pressed(ButtonAction.RETRY))
    words = "This button no longer works: its answer was deleted or replaced."
    assert setup.texts[1:] == ["Here it is.", f"⚠ Alice: {words}"]
    assert await setup.history() == [("user", "a"), ("assistant", "Here it is.")]


@pytest.mark.parametrize("again", ["/retry", pressed(ButtonAction.RETRY)], ids=["typed", "pressed"])
async def test_failed_retry_keeps_the_old_answer(
    database: Database, again: str | ButtonPress
) -> None:
    setup = Setup(database, ["one"], [AWAY])
    await setup.say("a", again)
    assert [text[:20] for text in setup.texts] == ["one", "⚠ The model is away."]
    assert await setup.history() == [("user", "a"), ("assistant", "one")]


async def test_stop_button_stops_the_answer_above_it(database: Database) -> None:
    setup = Setup(database, ["Once upon", asyncio.Event()], ["Two."])
    async with answering(setup, "a story") as worker:
        await advance_in_steps(setup.clock, 2)
        words = "Only the person who asked the question, or an admin, can use this button."
        assert await setup.buttons.find_refusal_reason(pressed(ButtonAction.STOP, by=BOB)) == words
        assert await setup.buttons.find_refusal_reason(pressed(ButtonAction.STOP)) is None
        await setup.receive(pressed(ButtonAction.STOP, "telegram:5:9/0", key="8"))  # of another
        await advance_in_steps(setup.clock, 1)
        assert not worker.done()
        await setup.receive(pressed(ButtonAction.STOP))
        await worker
    assert setup.texts == ["Once upon\n\n⚠ (stopped)"]
    assert setup.backend.closed_early == 1
    refusal = await setup.buttons.find_refusal_reason(pressed(ButtonAction.STOP))
    assert refusal == "No answer is being written here."


async def test_retry_replaces_the_answers_of_both_characters(database: Database) -> None:
    setup = Setup(database, ["N1"], ["L1"], ["N2"], ["L2"], others=[{"name": "luna"}])
    await setup.say("/preset add luna", make_incoming("nora and luna, hello", key="5:2"))
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY, "telegram:5:2/1"))
    assert setup.texts[1:] == ["**nora**\nN2", "**luna**\nL2"]
    await setup.say(pressed(ButtonAction.VERSION, "telegram:5:2/1", number=1, key="2"))
    assert setup.texts[1:] == ["**nora**\nN1", "**luna**\nL1"]
    assert [text for _, text in await setup.history()] == ["nora and luna, hello", "N1", "L1"]


async def test_version_keeps_the_face_of_its_character(database: Database) -> None:
    limits = replace(LIMITS, shows_faces=True)
    setup = Setup(database, ["one"], ["two"], limits=limits, preset={"role_name": "Nora"})
    await setup.say("a")
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert setup.texts == ["one"]
    faces = [content.face.name if content.face else None for content in setup.surface.contents]
    assert faces == ["Nora"] * 3


WITH_BUTTONS = replace(LIMITS, has_buttons=True)
GROUP = Address("telegram", "5")


def make_setup(database: Database, *, presets: int = 1, **more: Any) -> Setup:
    names = ["luna", *(f"extra-{number:02}" for number in range(presets - 1))]
    others: list[dict[str, object]] = [
        {"name": name, "description": f"About {name}.", "greeting": "Hail."} for name in names
    ]
    return Setup(database, others=others, **{"limits": WITH_BUTTONS, **more})


def shown_menu(setup: Setup) -> MessageContent:
    """Return the newest sent or edited message that has a menu."""
    return next(content for content in reversed(setup.surface.contents) if content.menus)


def menu(setup: Setup) -> Menu:
    """Return the first menu of the newest sent or edited message."""
    return setup.surface.contents[-1].menus[0]


def labels(setup: Setup) -> list[str]:
    return [one.label for one in setup.surface.contents[-1].buttons]


def menu_press(data: str, *values: str, by: Person = ALICE, key: str = "1") -> ButtonPress:
    return replace(pressed(ButtonAction.USE_PRESET, by=by, key=key), data=data, values=values)


def chosen(setup: Setup, label: str, *, by: Person = ALICE, key: str = "1") -> ButtonPress:
    """Return the press that chooses the first option with this label from the shown menus."""
    shown = next(content for content in reversed(setup.surface.contents) if content.menus)
    data, value = next(
        (each.data, one.value) for each in shown.menus for one in each.options if one.label == label
    )
    return menu_press(data, value, by=by, key=key)


def button(setup: Setup, label: str, *, by: Person = ALICE, key: str = "1") -> ButtonPress:
    [data] = [one.data for one in setup.surface.contents[-1].buttons if one.label == label]
    return menu_press(data, by=by, key=key)


async def test_preset_menu_shows_the_current_preset_and_where_it_was_chosen(
    database: Database,
) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu")
    assert setup.texts[0].startswith("Who answers here: nora (the default)")
    options = menu(setup).options
    assert [(one.label, one.description, one.is_chosen) for one in options] == [
        ("luna", "About luna.", False),
        ("nora", "", True),
    ]
    assert labels(setup) == [*("👥 Add or remove", "✏ By name"), *("↩ Inherited", "⚙ Settings")]


async def test_menu_choice_works_like_the_command_and_is_announced(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu", "hello")
    restarted = make_setup(database, surface=setup.surface)
    await restarted.say(chosen(setup, "luna"))
    shown, _, told, greeting = restarted.texts
    assert shown.startswith("Who answers here: luna (chosen for this channel)")
    assert told == "Changed by Alice: luna answers here from now on."
    assert greeting == "Hail."
    assert await restarted.history() == [("assistant", "Hail.")]


async def test_menu_choice_by_another_person_is_refused_with_a_notice(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu")
    others = chosen(setup, "luna", by=BOB)
    words = "Only the person who asked can use this button."
    assert await setup.buttons.find_refusal_reason(others) == words
    assert await setup.buttons.find_refusal_reason(chosen(setup, "luna")) is None
    await setup.say(others)  # also if a platform could not ask
    assert setup.texts[1:] == [f"⚠ Bob: {words}"]
    assert setup.texts[0].startswith("Who answers here: nora (the default)")


async def test_menu_of_an_anonymous_admin_can_be_used_by_any_admin(database: Database) -> None:
    setup = make_setup(database)
    the_group = Person("telegram:5", "Round table")
    await setup.say(make_incoming("/preset menu", author=the_group))
    by_admin = chosen(setup, "luna", by=ALICE)
    assert await setup.buttons.find_refusal_reason(replace(by_admin, author=BOB)) is not None
    assert await setup.buttons.find_refusal_reason(by_admin) is None
    await setup.say(by_admin)
    assert setup.texts[0].startswith("Who answers here: luna (chosen for this channel)")
    assert setup.texts[1] == "Changed by Round table: luna answers here from now on."


async def test_menu_choice_by_a_non_admin_is_refused_in_the_menu(database: Database) -> None:
    setup = make_setup(database)
    await setup.say(make_incoming("/preset menu", author=BOB))
    await setup.say(chosen(setup, "luna", by=BOB))
    [shown] = setup.texts
    assert shown.startswith("⚠ Only an admin can change who answers here.\nWho answers here: nora")


async def test_long_menu_has_pages(database: Database) -> None:
    setup = make_setup(database, presets=41)
    await setup.say("/preset menu")
    assert len(menu(setup).options) == 20
    assert labels(setup)[:2] == ["1/3", "›"]
    await setup.say(button(setup, "›"))
    assert labels(setup)[:3] == ["‹", "2/3", "›"]
    await setup.say(chosen(setup, "extra-25", key="2"))
    assert setup.texts[0].startswith("Who answers here: extra-25")


async def test_settings_menu_changes_settings_and_opens_the_preset_menu(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/settings menu")
    await setup.say(chosen(setup, "Remember only what is said to me"))
    assert not await setup.resolver.may_observe((GROUP.lane,))
    assert "only what is said to me (chosen for this channel)" in setup.texts[0]
    options = [one for each in shown_menu(setup).menus for one in each.options]
    assert "Remember only what is said to me" in [one.label for one in options if one.is_chosen]
    assert setup.texts[1].startswith("Changed by Alice: From now on I remember only")
    await setup.say(chosen(setup, "Use the inherited setting", key="2"))
    assert await setup.resolver.may_observe((GROUP.lane,))
    await setup.say("/settings menu")
    await setup.say(button(setup, "🎭 Who answers", key="3"))
    assert menu(setup).title == "Choose who should answer here"


async def test_deleted_preset_cannot_be_chosen(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu")
    await setup.say(menu_press(menu(setup).data, "0123456789"))
    assert setup.texts[0].startswith("⚠ That preset no longer exists.")


async def test_platform_without_buttons_gets_menus_as_text(database: Database) -> None:
    setup = make_setup(database, limits=replace(LIMITS, has_buttons=False))
    await setup.say("/settings")
    assert setup.surface.contents[-1].menus == ()
    assert "/settings overhear on, off or inherit" in setup.texts[0]


@pytest.mark.parametrize("action", [ButtonAction.USE_PRESET, ButtonAction.OBSERVE])
def test_data_of_a_menu_choice_fits_the_size_limit(action: ButtonAction) -> None:
    part = "telegram@7012345678:-1001234567890:1234567890:e12345678/99"
    value = "inherit" if action is ButtonAction.OBSERVE else "0123456789"
    data = encode_button(action, part, 99 if action is ButtonAction.USE_PRESET else 0)
    assert len(f"{data}={value}".encode()) <= MAX_DATA_BYTES


async def test_characters_are_added_and_removed_by_menu_choices(database: Database) -> None:
    setup = make_setup(database, presets=2)
    await setup.say(make_incoming("/preset menu", admin=True))
    await setup.say(button(setup, "👥 Add or remove"))
    assert [one.label for one in menu(setup).options] == ["extra-00", "luna", "nora"]
    admin = replace(chosen(setup, "luna", key="2"), author_is_admin=True)
    await setup.say(admin)
    assert setup.texts[0].startswith("Who answers here: nora, luna (chosen for this channel)")
    options = shown_menu(setup).menus[0].options
    assert [one.label for one in options if one.is_chosen] == ["luna", "nora"]
    await setup.say(replace(chosen(setup, "nora", key="3"), author_is_admin=True))
    assert setup.texts[0].startswith("Who answers here: luna (chosen for this channel)")
    assert [one.label for one in shown_menu(setup).buttons] == ["🎭 Only one", "⚙ Settings"]


async def test_description_is_set_in_a_form_and_shown_with_its_scope(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/me everywhere I am tall", "/settings menu")
    assert "Your description: set for all channels" in setup.texts[-1]
    assert "tall" not in setup.texts[-1], "others read the menu in a group"
    form = button(setup, "✏ About me")
    await setup.say(replace(form, values=("I am a knight",)))
    assert "Your description: chosen for this channel" in setup.texts[-1]
    await setup.say(replace(form, values=("",), external_key="cb2", is_private=True))
    assert "Your description: I am tall (set for all channels)" in setup.texts[-1]


async def test_api_key_in_a_form_is_masked_and_its_author_warned(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/settings menu")
    form = replace(button(setup, "✏ About me"), values=("I own sk-proj-CANARY00000000000000001",))
    received = to_storable_event(form)
    assert isinstance(received, ButtonPress)
    assert received.values == ("I own ***0001",)
    await setup.say(received)
    assert setup.texts[-1].startswith("⚠ Your message seems to contain a token")
    await setup.say(make_incoming("/me", key="5:9"))
    assert "I own ***0001" in setup.texts[-1]


async def test_menus_show_inherited_settings_and_their_scopes(database: Database) -> None:
    setup = make_setup(database)
    around = make_incoming("/preset use luna", admin=True, key="5:1")
    here = replace(around, text="/preset use nora", scopes=("telegram:5", "telegram:4"))
    await setup.say(replace(around, scopes=("telegram:4",)), replace(here, external_key="5:2"))
    await setup.say(replace(here, text="/settings overhear off", external_key="5:3"))
    await setup.say(replace(here, text="/settings scope shared", external_key="5:4"))
    await setup.say(replace(here, text="/settings menu", external_key="5:5"))
    lines = setup.texts[-1].splitlines()
    assert lines[:2] == [
        "Who answers here: nora (chosen for this channel)",
        "↩ Inherited: luna (inherited from the channel)",
    ]
    assert "↩ Inherited: Remember what people say to each other (the default)" in lines
    assert [one for one in lines if one.startswith("↩")][2].endswith("(the default)")
