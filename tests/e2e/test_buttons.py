"""Test buttons, menus and forms on both platforms, before and after a restart."""

from typing import Any

import pytest
from simcord.enums import ComponentType
from simcord.results import ResponseMessage

from tests.media.file_samples import picture
from tests.support.chats import (
    AT_ONCE,
    DELETE,
    RETRY,
    TELEGRAM_PEOPLE,
    Chat,
    DiscordChat,
    Platforms,
    TelegramChat,
)
from tests.support.features import GROUPS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.support.transcripts import expected_answer
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(TESTER, TROUPE_PROVIDERS__TEST__SEES="images")]

NOT_YOURS = "Only the person who asked the question, or an admin, can use this button."
CHOSEN = "Who answers here: nova (chosen for this channel)"
TOLD = "nova answers here from now on."
ABOUT_ME, BY_NAME, PRESETS = "✏ About me", "✏ By name", "🎭 Who answers"


# --- under answers -------------------------------------------------------------------------------


@at(*GROUPS)
async def test_buttons_work_after_a_restart(where: Chat, running: Service, model: Model) -> None:
    question = where.ask()
    await where.shows(question, labels=AT_ONCE)
    await running.restart()
    asked = len(model.requests)
    for label in AT_ONCE:
        assert await where.private_reply(await where.press(label, who=1)) == NOT_YOURS
    assert await where.private_reply(await where.press(RETRY)) == ""
    await where.shows(question, labels=[*AT_ONCE, "‹", "2/2"])
    assert len(model.requests) == asked + 1
    await where.press("‹")
    await where.shows(question, labels=[*AT_ONCE, "1/2", "›"])
    await running.restart()
    await where.press("›")
    await where.shows(question, labels=[*AT_ONCE, "‹", "2/2"])
    await where.press(DELETE)
    await where.shows()


@at("channel")
async def test_commands_in_the_menu_of_a_message_work(
    where: DiscordChat, running: Service, model: Model
) -> None:
    (alice, bob), admin, env = where.people, where.platforms.admin, where.platforms.discord.env

    async def call(who: Any, name: str, message: Any) -> str:
        result = await who.context_menu(where.handle, name, ResponseMessage(env, message))
        await wait_until(lambda: result.response and result.response.content)
        assert result.ephemeral
        return str(result.response.content)

    answer = where.ask().answer
    await where.shows(answer, labels=AT_ONCE)
    [shown] = where.bot_messages()
    assert (await call(alice, "Inspect", shown)).startswith("tester")
    assert await call(bob, "Retry from here", shown) == (
        "⚠ Only an admin can retry or undo a question that somebody else asked."
    )
    asked = len(model.requests)
    assert await call(alice, "Retry from here", shown) == "I've answered the question again below."
    assert where.texts() == [answer, answer]
    assert len(model.requests) == asked + 1
    assert [one["role"] for one in model.requests[-1]["messages"]] == ["system", "user"]
    [_, shown] = where.bot_messages()
    form = await alice.context_menu(where.handle, "Edit", ResponseMessage(env, shown))
    await wait_until(lambda: form.modal)
    assert answer in str(form.modal)
    await running.restart()
    changed = await alice.submit_modal(form, {"text": "It was **quiet**."})
    await wait_until(lambda: changed.response and changed.response.content == "Changed.")
    await where.shows(answer, "It was **quiet**.", labels=[*AT_ONCE, "‹", "2/2"])
    assert (await call(admin, "Forget", shown)).startswith("I have forgotten that message")


# --- menus ---------------------------------------------------------------------------------------


async def open_menu(where: DiscordChat, command: str) -> Any:
    """Open a menu as an admin; return the result of the command."""
    menu = await where.platforms.admin.slash(where.handle, command)
    await wait_until(lambda: menu.response and menu.response.components)
    return menu


def presets_in(menu: Any) -> Any:
    """Return the list of presets in a menu, if any."""
    rows = [row["components"][0] for row in menu.response.components]
    lists = [one for one in rows if one["type"] == ComponentType.STRING_SELECT]
    return next((one for one in lists if "nova" in str(one["options"])), None)


async def choose_nova(where: DiscordChat, menu: Any) -> None:
    listed = await wait_until(lambda: presets_in(menu))
    [value] = [one["value"] for one in listed["options"] if one["label"] == "nova"]
    await where.platforms.admin.select(menu.response, [value], custom_id=listed["custom_id"])


async def nova_is_chosen(where: DiscordChat, menu: Any) -> None:
    await wait_until(lambda: menu.response.content.startswith(CHOSEN))
    await where.shows(f"Changed by admin: {TOLD}")


@at("channel")
async def test_menus_on_discord_are_private(where: DiscordChat, running: Service) -> None:
    menu = await open_menu(where, "settings menu")
    assert menu.ephemeral
    assert menu.response.content.startswith("Who answers here: tester (the default)")
    await running.restart()
    presets = await where.platforms.admin.click(menu.response, label=PRESETS)
    await wait_until(lambda: presets.acknowledged)
    listed = await wait_until(lambda: presets_in(menu))
    assert [one["label"] for one in listed["options"]] == ["nova", "tester"]
    await choose_nova(where, menu)
    await nova_is_chosen(where, menu)


@at("telegram_group")
async def test_menus_on_telegram_can_be_used_only_by_their_owner(
    where: TelegramChat, running: Service
) -> None:
    where.make_admins(*TELEGRAM_PEOPLE)
    where.say("/preset menu")
    await where.wait_until(lambda: any("nova" in labels for labels in where.buttons()))
    await running.restart()
    only_author = "Only the person who asked can use this button."
    assert await where.private_reply(await where.press("nova", who=1)) == only_author
    assert await where.private_reply(await where.press("nova")) == ""
    await where.wait_until(lambda: where.texts()[1:] == [f"Changed by U1: {TOLD}"])
    assert where.texts()[0].startswith(CHOSEN)
    [labels, _] = where.buttons()
    others = ["👥 Add or remove", BY_NAME, "↩ Inherited", "⚙ Settings"]
    assert labels == ["✓ nova", "tester", *others]


@at("channel")
async def test_settings_can_be_entered_into_forms(where: DiscordChat, running: Service) -> None:
    admin, menu = where.platforms.admin, await open_menu(where, "settings menu")

    async def open_form(label: str) -> Any:
        form = await admin.click(menu.response, label=label)
        await wait_until(lambda: form.modal)
        return form

    def labels() -> list[str]:
        rows = menu.response.components
        return [str(one.get("label")) for row in rows for one in row["components"]]

    form = await open_form(ABOUT_ME)
    assert "Your description here" in str(form.modal)
    await running.restart()
    await admin.submit_modal(form, {"text": "I am a tall knight"})
    described = "Your description: chosen for this channel"
    await wait_until(lambda: described in menu.response.content)
    assert "I am a tall knight" in str((await open_form(ABOUT_ME)).modal)

    presets = await admin.click(menu.response, label=PRESETS)
    await wait_until(lambda: presets.acknowledged)
    await wait_until(lambda: BY_NAME in labels())
    await admin.submit_modal(await open_form(BY_NAME), {"text": "nova"})
    await wait_until(lambda: menu.response.content.startswith(CHOSEN))


@at("telegram_group")
@pytest.mark.parametrize(
    ("menu", "button", "command"),
    [("/preset menu", BY_NAME, "Write /preset use "), ("/settings", ABOUT_ME, "Write /me ")],
)
async def test_button_for_free_text_shows_the_command_on_telegram(
    where: TelegramChat, menu: str, button: str, command: str
) -> None:
    where.make_admins(TELEGRAM_PEOPLE[0])
    where.say(menu)
    await where.wait_until(lambda: any(button in labels for labels in where.buttons()))
    assert (await where.private_reply(await where.press(button))).startswith(command)


# --- menus, forms and albums on Discord around faults and kills ----------------------------------

LOST: dict[str, Any] = {"drop": True, "after": True}
LATER: dict[str, Any] = {"retry_after": 1}
ACKNOWLEDGEMENT = ("POST", "/interactions/*")
RESPONSE = ("PATCH", "/webhooks/*/messages/@original")
FAULTS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "acknowledgement 429": (ACKNOWLEDGEMENT, LATER),
    "acknowledgement failed": (ACKNOWLEDGEMENT, {"status": 500}),
    "acknowledgement lost": (ACKNOWLEDGEMENT, LOST),
    "response 429": (RESPONSE, LATER),
    "response lost": (RESPONSE, LOST),
}
MESSAGE = ("POST", "/channels/*/messages")
FAULTS_OF_MESSAGES = {"message 429": (MESSAGE, LATER), "message lost": (MESSAGE, LOST)}


def disturb(where: DiscordChat, fault: str) -> None:
    """Disturb the next request as the fault specifies."""
    (method, path), how = (FAULTS | FAULTS_OF_MESSAGES)[fault]
    where.platforms.discord.fault(method, path, times=1, **how)


@at("channel")
@pytest.mark.parametrize("fault", [*FAULTS, *FAULTS_OF_MESSAGES])
async def test_choice_is_shown_and_announced_once(where: DiscordChat, fault: str) -> None:
    menu = await open_menu(where, "preset menu")
    disturb(where, fault)
    await choose_nova(where, menu)
    await nova_is_chosen(where, menu)


@at("channel")
@pytest.mark.parametrize("fault", FAULTS)
async def test_native_command_is_answered_in_public_once(where: DiscordChat, fault: str) -> None:
    disturb(where, fault)
    response = await where.slash(where.platforms.admin, "preset use", name="nova")
    assert not response.ephemeral
    await where.shows(TOLD)


@at("channel")
@pytest.mark.parametrize("point", ["before_finish", "after_finish", "after_http"])
async def test_choice_made_before_a_kill_is_shown_and_announced_once(
    where: DiscordChat, running: Service, point: str
) -> None:
    menu = await open_menu(where, "preset menu")
    async with running.killed_at(point):
        await choose_nova(where, menu)
    await nova_is_chosen(where, menu)


@at("channel")
async def test_album_is_answered_once_even_if_the_service_is_killed(
    where: DiscordChat, running: Service, model: Model
) -> None:
    files = [("a.png", picture(40, 20)), ("b.png", picture(20, 40)), ("c.txt", b"three")]
    async with running.killed_at("during_generation"):
        said = f"{where.mention}compare Tee01:12"
        where.platforms.discord.say(where.people[0], where.chat, said, files=files)
    await where.shows(expected_answer("Tee01:12"))
    content = model.requests[-1]["messages"][-1]["content"]
    assert [one["type"] for one in content] == ["text", "image_url", "image_url"]
    assert "> three" in str(content)


async def test_each_press_in_the_tests_above_is_acknowledged_once(platforms: Platforms) -> None:
    calls = platforms.telegram.log
    answered = [one for one in calls if one["method"] == "answerCallbackQuery"]
    ids = [one["params"]["callback_query_id"] for one in answered]
    assert sorted(ids) == sorted(platforms.telegram.queries)
    # A killed process may have acknowledged one that is replayed; then Discord refuses the second.
    callbacks = [
        one["path"]
        for one in platforms.discord.log
        if one["path"].endswith("/callback") and one["status"] in (200, 204)
    ]
    assert len(callbacks) == len(set(callbacks)) > 0
