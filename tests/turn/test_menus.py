"""Test the menus of /preset and /settings: what they show, who may use them, what a choice does."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.chat.command import MAX_DATA_BYTES, ButtonAction, ButtonData
from bot.chat.incoming import Address, Person, Pressed, WakeReason
from bot.chat.outgoing import Limits, Menu, MessageContent
from bot.intake import with_storable_text
from bot.storage.database import Database
from tests.fakes import LIMITS
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup

WITH_BUTTONS = replace(LIMITS, has_buttons=True)
GROUP = Address("telegram", "5")


def make_setup(database: Database, *, limits: Limits = WITH_BUTTONS, presets: int = 1) -> Setup:
    names = ["luna", *(f"extra-{number:02}" for number in range(presets - 1))]
    others: list[dict[str, object]] = [
        {"name": name, "description": f"About {name}.", "greeting": "Hail."} for name in names
    ]
    return Setup(database, limits=limits, others=others)


def shown_menu(setup: Setup) -> MessageContent:
    """Return the newest message that was sent or edited with a menu."""
    return next(content for content in reversed(setup.surface.contents) if content.menus)


def menu(setup: Setup) -> Menu:
    """Return the first menu of the newest message that was sent or edited."""
    return setup.surface.contents[-1].menus[0]


def labels(setup: Setup) -> list[str]:
    return [one.label for one in setup.surface.contents[-1].buttons]


def pressed(data: str, *values: str, by: Person = ALICE, key: str = "1") -> Pressed:
    return Pressed(
        address=GROUP,
        external_key=f"cb{key}",
        message_id="900",
        author=by,
        data=data,
        at=datetime(2026, 11, 22, 12, 0, tzinfo=UTC),
        scopes=(GROUP.lane,),
        values=values,
        interaction="77",
    )


def chosen(setup: Setup, label: str, *, by: Person = ALICE, key: str = "1") -> Pressed:
    """Return what choosing an option of the shown menus brings: the first one of that name."""
    shown = next(content for content in reversed(setup.surface.contents) if content.menus)
    data, value = next(
        (each.data, one.value) for each in shown.menus for one in each.options if one.label == label
    )
    return pressed(data, value, by=by, key=key)


def button(setup: Setup, label: str, *, by: Person = ALICE, key: str = "1") -> Pressed:
    [data] = [one.data for one in setup.surface.contents[-1].buttons if one.label == label]
    return pressed(data, by=by, key=key)


async def test_menu_of_presets_shows_who_answers_and_where_that_was_set(
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
    assert labels(setup) == [
        *("👥 Add or remove", "✏ By name"),
        *("↩ Inherited", "⚙ Settings"),
    ]


async def test_choice_does_what_the_command_does_and_everybody_is_told(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu", "hello")
    restarted = Setup(
        database,
        backend=setup.backend,
        limits=WITH_BUTTONS,
        others=[{"name": "luna", "greeting": "Hail."}],
        surface=setup.surface,
    )
    await restarted.say(chosen(setup, "luna"))
    shown, _, told, greeting = restarted.texts
    assert shown.startswith("Who answers here: luna (chosen for this channel)")
    assert told == "Changed by Alice: luna answers here from now on."
    assert greeting == "Hail."
    assert await restarted.history() == [("assistant", "Hail.")]


async def test_choice_of_others_is_refused_in_words_and_changes_nothing(
    database: Database,
) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu")
    others = chosen(setup, "luna", by=BOB)
    words = "Only the person who asked for it can use this button."
    assert await setup.buttons.refusal(others) == words
    assert await setup.buttons.refusal(chosen(setup, "luna")) is None
    await setup.say(others)  # also if a platform could not ask
    assert setup.texts[1:] == [f"⚠ Bob: {words}"]
    assert setup.texts[0].startswith("Who answers here: nora (the default)")


async def test_menu_of_who_writes_as_the_group_is_used_by_any_admin(database: Database) -> None:
    setup = make_setup(database)
    the_group = Person("telegram:5", "Round table")
    await setup.say(make_incoming("/preset menu", author=the_group))
    by_admin = chosen(setup, "luna", by=ALICE)
    assert await setup.buttons.refusal(replace(by_admin, author=BOB)) is not None
    assert await setup.buttons.refusal(by_admin) is None
    await setup.say(by_admin)
    assert setup.texts[0].startswith("Who answers here: luna (chosen for this channel)")
    assert setup.texts[1] == "Changed by Round table: luna answers here from now on."


async def test_choice_of_who_is_no_admin_is_refused_in_the_menu(database: Database) -> None:
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


async def test_settings_show_what_holds_and_where_it_was_set(database: Database) -> None:
    setup = make_setup(database)
    in_topic = make_incoming("/settings", thread="7")
    await setup.resolver.set_observing(GROUP.lane, on=False, by="telegram:1")
    await setup.receive(in_topic)
    await setup.work("telegram:5:7")
    shown = setup.texts[0].splitlines()
    assert shown[:2] == [
        "Who answers here: nora (the default)",
        "What I remember here: Remember only what is said to me (inherited from the channel)",
    ]
    assert [one.label for one in menu(setup).options if one.is_chosen] == ["As inherited"]


async def test_settings_are_changed_by_a_choice_and_lead_to_the_presets(
    database: Database,
) -> None:
    setup = make_setup(database)
    await setup.say("/settings menu")
    await setup.say(chosen(setup, "Remember only what is said to me"))
    assert not await setup.resolver.observes((GROUP.lane,))
    assert "only what is said to me (chosen for this channel)" in setup.texts[0]
    assert setup.texts[1].startswith("Changed by Alice: From now on I remember only")
    await setup.say(chosen(setup, "As inherited", key="2"))
    assert await setup.resolver.observes((GROUP.lane,))
    await setup.say("/settings menu")
    await setup.say(button(setup, "🎭 Who answers", key="3"))
    assert menu(setup).title == "Choose who should answer here"


async def test_preset_that_is_gone_cannot_be_chosen(database: Database) -> None:
    setup = make_setup(database)
    await setup.say("/preset menu")
    await setup.say(pressed(menu(setup).data, "0123456789"))
    assert setup.texts[0].startswith("⚠ That preset does not exist any more.")


async def test_native_menu_is_for_its_author_alone_and_changed_by_the_press(
    database: Database,
) -> None:
    setup = make_setup(database)
    native = make_incoming("/preset menu", wake=WakeReason.COMMAND)
    await setup.say(replace(native, message_id=None, interaction="1:token"))
    await setup.say(chosen(setup, "luna"))
    assert setup.surface.interactions == ["77"]


async def test_platform_without_buttons_gets_the_same_in_words(database: Database) -> None:
    setup = make_setup(database, limits=replace(LIMITS, has_buttons=False))
    await setup.say("/settings")
    assert setup.surface.contents[-1].menus == ()
    assert "/settings overhear on, off or inherit" in setup.texts[0]


@pytest.mark.parametrize("action", [ButtonAction.USE, ButtonAction.OBSERVE])
def test_data_of_a_choice_fits(action: ButtonAction) -> None:
    part = "telegram@7012345678:-1001234567890:1234567890:e12345678/99"
    value = "inherit" if action is ButtonAction.OBSERVE else "0123456789"
    data = ButtonData(action, part, 99 if action is ButtonAction.USE else 0).encode()
    assert len(f"{data}={value}".encode()) <= MAX_DATA_BYTES


async def test_single_characters_are_added_and_removed_by_choices(database: Database) -> None:
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


async def test_preset_is_chosen_by_the_name_that_a_form_brings(database: Database) -> None:
    setup = make_setup(database)
    await setup.say(make_incoming("/preset menu", admin=True))
    form = button(setup, "✏ By name")
    await setup.say(replace(form, values=(" luna\n",), author_is_admin=True))
    assert setup.texts[0].startswith("Who answers here: luna (chosen for this channel)")
    await setup.say(replace(form, values=("lunna",), author_is_admin=True, external_key="cb2"))
    assert setup.texts[0].startswith("⚠ no preset 'lunna'")


async def test_description_of_oneself_is_set_by_a_form_and_shows_its_source(
    database: Database,
) -> None:
    setup = make_setup(database)
    await setup.say("/me everywhere I am tall", "/settings menu")
    assert "How you describe yourself: for all channels" in setup.texts[-1]
    assert "tall" not in setup.texts[-1], "others read the menu in a group"
    form = button(setup, "✏ About me")
    await setup.say(replace(form, values=("I am a knight",)))
    assert "How you describe yourself: chosen for this channel" in setup.texts[-1]
    await setup.say(replace(form, values=("",), external_key="cb2", is_private=True))
    assert "How you describe yourself: I am tall (for all channels)" in setup.texts[-1]


async def test_key_in_a_form_is_neither_kept_nor_shown_and_its_author_is_told(
    database: Database,
) -> None:
    setup = make_setup(database)
    await setup.say("/settings menu")
    form = replace(button(setup, "✏ About me"), values=("I own sk-proj-CANARY00000000000000001",))
    received = with_storable_text(form)
    assert isinstance(received, Pressed)
    assert received.values == ("I own ***0001",)
    await setup.say(received)
    assert setup.texts[-1].startswith("⚠ Your message seems to hold a token")
    await setup.say(make_incoming("/me", key="5:9"))
    assert "I own ***0001" in setup.texts[-1]


async def test_menus_show_what_is_inherited_and_where_that_was_set(database: Database) -> None:
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
