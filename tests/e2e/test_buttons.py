"""The buttons under answers on both platforms, pressed before and after a restart."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from simcord.builders import ChannelHandle
from simcord.enums import ComponentType
from simcord.results import ResponseMessage

from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.shown_messages import AT_ONCE, ShownMessages
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("channel", "group")
NOT_YOURS = "Only the person who asked the question, or an admin, can use this button."


@dataclass
class Deployment:
    """A channel of each platform, whose people press buttons."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess
    shown: ShownMessages

    def open(self, kind: str) -> Conversation:
        is_group = kind == "group"
        return self.platforms.telegram_group() if is_group else self.platforms.channel()

    async def restart(self) -> None:
        await self.service.kill()
        await self.service.start_and_wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> AsyncIterator[Deployment]:
    await service.start_and_wait()
    yield Deployment(platforms, model, service, ShownMessages(platforms))


@pytest.mark.parametrize("kind", KINDS)
async def test_buttons_work_after_a_restart_for_who_asked(
    deployment: Deployment, kind: str
) -> None:
    where = deployment.open(kind)
    where.ask("ab01")
    answer = expected_answer("Tab01:12")
    await deployment.shown.shows(where, answer, AT_ONCE)
    await deployment.restart()
    asked = len(deployment.model.requests)
    for label in AT_ONCE:
        refused = await deployment.shown.press(where, label, who=1)
        assert await deployment.shown.words_alone(where, refused) == NOT_YOURS
    pressed = await deployment.shown.press(where, "🔄 Retry")
    assert await deployment.shown.words_alone(where, pressed) == ""
    await deployment.shown.shows(where, answer, [*AT_ONCE, "‹", "2/2"])
    assert len(deployment.model.requests) == asked + 1
    await deployment.shown.press(where, "‹")
    await deployment.shown.shows(where, answer, [*AT_ONCE, "1/2", "›"])
    await deployment.restart()
    await deployment.shown.press(where, "›")
    await deployment.shown.shows(where, answer, [*AT_ONCE, "‹", "2/2"])
    await deployment.shown.press(where, "🗑 Delete")
    await wait_until(lambda: deployment.shown.texts(where) == [])


@pytest.mark.parametrize("kind", KINDS)
async def test_stop_button_ends_the_answer(deployment: Deployment, kind: str) -> None:
    where = deployment.open(kind)
    halfway, hung_up = deployment.model.halfway, deployment.model.hung_up
    deployment.model.gate.clear()
    try:
        where.ask("ab02", 40)
        await wait_until(lambda: deployment.model.halfway > halfway)
        await wait_until(lambda: deployment.shown.buttons(where) == [["⏹ Stop"]])
        refused = await deployment.shown.press(where, "⏹ Stop", who=1)
        assert await deployment.shown.words_alone(where, refused) == NOT_YOURS
        assert deployment.model.hung_up == hung_up
        await deployment.shown.press(where, "⏹ Stop")
        await wait_until(lambda: deployment.model.hung_up > hung_up)
    finally:
        deployment.model.gate.set()
    await wait_until(lambda: deployment.shown.buttons(where) == [AT_ONCE])
    [shown] = deployment.shown.texts(where)
    assert shown.endswith("⚠ (stopped)")


async def test_menus_on_discord_are_their_authors_and_everybody_is_told(
    deployment: Deployment,
) -> None:
    platforms = deployment.platforms
    channel = platforms.guild.create_text_channel("menus")
    shown = await platforms.admin.slash(channel, "settings menu")
    await wait_until(lambda: shown.response and shown.response.components)
    assert shown.ephemeral
    assert shown.response.content.startswith("Who answers here: tester (the default)")
    await deployment.restart()
    presets = await platforms.admin.click(shown.response, label="🎭 Who answers")
    await wait_until(lambda: presets.acknowledged)
    await wait_until(lambda: _options(shown.response.components) == ["nova", "tester"])
    [menu] = [row["components"][0] for row in shown.response.components if _is_menu(row)]
    [value] = [one["value"] for one in menu["options"] if one["label"] == "nova"]
    await platforms.admin.select(shown.response, [value], custom_id=menu["custom_id"])
    chosen = "Who answers here: nova (chosen for this channel)"
    await wait_until(lambda: shown.response.content.startswith(chosen))
    told = "Changed by admin: nova answers here from now on."
    everybody = Conversation(f"discord:{channel.id}", "", print, print)
    await wait_until(lambda: deployment.shown.texts(everybody) == [told])


async def test_menus_on_telegram_are_locked_to_their_author(deployment: Deployment) -> None:
    where, wire = deployment.open("group"), deployment.platforms.telegram
    where.say("hello everybody", 1)
    chat = int(where.name.removeprefix("telegram:"))
    wire.chats[chat]["_admins"] = set(TELEGRAM_PEOPLE)
    where.say("/preset menu", 0)
    await wait_until(
        lambda: any("nova" in labels for labels in deployment.shown.buttons(where)), 20
    )
    await deployment.restart()
    refused = await deployment.shown.press(where, "nova", who=1)
    only_author = "Only the person who asked for it can use this button."
    assert await deployment.shown.words_alone(where, refused) == only_author
    pressed = await deployment.shown.press(where, "nova")
    assert await deployment.shown.words_alone(where, pressed) == ""
    told = "Changed by U1: nova answers here from now on."
    await wait_until(lambda: deployment.shown.texts(where)[1:] == [told])
    assert deployment.shown.texts(where)[0].startswith(
        "Who answers here: nova (chosen for this channel)"
    )
    [labels, _] = deployment.shown.buttons(where)
    assert labels == [
        "✓ nova",
        "tester",
        "👥 Add or remove",
        "✏ By name",
        "↩ Inherited",
        "⚙ Settings",
    ]


async def test_free_values_are_entered_into_forms_on_discord(deployment: Deployment) -> None:
    platforms = deployment.platforms
    channel = platforms.guild.create_text_channel("forms")
    shown = await platforms.admin.slash(channel, "settings menu")
    await wait_until(lambda: shown.response and shown.response.components)
    form = await platforms.admin.click(shown.response, label="✏ About me")
    await wait_until(lambda: form.modal)
    assert "How you describe yourself here" in str(form.modal)
    await deployment.restart()
    await platforms.admin.submit_modal(form, {"text": "I am a tall knight"})
    described = "How you describe yourself: chosen for this channel"
    await wait_until(lambda: described in shown.response.content)
    again = await platforms.admin.click(shown.response, label="✏ About me")
    await wait_until(lambda: again.modal)
    assert "I am a tall knight" in str(again.modal)

    presets = await platforms.admin.click(shown.response, label="🎭 Who answers")
    await wait_until(lambda: presets.acknowledged)
    by_name = "✏ By name"
    await wait_until(lambda: by_name in _labels(shown.response.components))
    form = await platforms.admin.click(shown.response, label=by_name)
    await wait_until(lambda: form.modal)
    await platforms.admin.submit_modal(form, {"text": "nova"})
    chosen = "Who answers here: nova (chosen for this channel)"
    await wait_until(lambda: shown.response.content.startswith(chosen))


async def test_free_values_are_written_in_replies_on_telegram(deployment: Deployment) -> None:
    """The question is lost on its way and asked once; the service is killed before the reply."""
    where, wire = deployment.open("group"), deployment.platforms.telegram
    asked = where.say("/preset menu", 0)
    chat = asked["chat"]["id"]
    wire.chats[chat]["_admins"] = {TELEGRAM_PEOPLE[0]}
    shown = deployment.shown
    await wait_until(lambda: any("✏ By name" in labels for labels in shown.buttons(where)))
    before = len(wire.log)
    wire.fault("sendMessage", drop=True, after=True, match={"chat_id": chat})
    pressed = await shown.press(where, "✏ By name")
    assert await shown.words_alone(where, pressed) == ""
    question = "Who should answer here? Reply to this message with the name of the preset."
    await wait_until(lambda: shown.texts(where)[1:] == [question])
    [call] = [one["params"] for one in wire.log[before:] if one["method"] == "sendMessage"]
    assert call["reply_markup"] == {
        "force_reply": True,
        "selective": True,
        "input_field_placeholder": "The name of the preset",
    }
    assert call["reply_parameters"]["message_id"] == asked["message_id"]
    await deployment.restart()
    where.reply("nova")
    told = "nova answers here from now on."
    await wait_until(lambda: shown.texts(where)[1:] == [question, told])


async def test_description_is_written_in_a_reply_on_telegram(deployment: Deployment) -> None:
    where = deployment.open("group")
    where.say("/settings", 0)
    shown = deployment.shown
    await wait_until(lambda: any("✏ About me" in labels for labels in shown.buttons(where)))
    await shown.press(where, "✏ About me")
    await wait_until(lambda: shown.texts(where)[-1].startswith("How do you describe"))
    where.reply("a tall knight")
    await wait_until(lambda: "a tall knight" in shown.texts(where)[-1])


async def test_commands_in_the_menu_of_a_message(deployment: Deployment) -> None:
    platforms, model = deployment.platforms, deployment.model
    where = deployment.open("channel")
    alice, bob = platforms.people
    channel = _channel_handle(deployment, where)

    async def call(who: Any, name: str, message: Any) -> Any:
        result = await who.context_menu(
            channel, name, ResponseMessage(platforms.discord.env, message)
        )
        await wait_until(lambda: result.response and result.response.content)
        assert result.ephemeral
        return result.response.content

    where.ask("ab03")
    answer = expected_answer("Tab03:12")
    await deployment.shown.shows(where, answer, AT_ONCE)
    [shown] = deployment.shown.of(where)
    assert (await call(alice, "Inspect", shown)).startswith("tester")
    assert await call(bob, "Retry from here", shown) == (
        "⚠ Only an admin can retry or undo a question that somebody else asked."
    )
    asked = len(model.requests)
    assert await call(alice, "Retry from here", shown) == "The question is answered again below."
    assert deployment.shown.texts(where) == [answer, answer]
    assert len(model.requests) == asked + 1
    assert [one["role"] for one in model.requests[-1]["messages"]] == ["system", "user"]
    [_, shown] = deployment.shown.of(where)
    form = await alice.context_menu(channel, "Edit", ResponseMessage(platforms.discord.env, shown))
    await wait_until(lambda: form.modal)
    assert answer in str(form.modal)
    await deployment.restart()
    changed = await alice.submit_modal(form, {"text": "It was **quiet**."})
    await wait_until(lambda: changed.response and changed.response.content == "Changed.")
    await wait_until(lambda: deployment.shown.texts(where) == [answer, "It was **quiet**."])
    assert deployment.shown.buttons(where)[1] == [*AT_ONCE, "‹", "2/2"]
    admin_forgets = await call(platforms.admin, "Forget", shown)
    assert admin_forgets.startswith("I have forgotten that message")


def _channel_handle(deployment: Deployment, where: Conversation) -> ChannelHandle:
    wire, guild = deployment.platforms.discord, deployment.platforms.guild
    number = int(where.name.removeprefix("discord:"))
    return ChannelHandle(wire.env, guild, wire.b.get_channel(number))


def _labels(components: list[dict[str, Any]]) -> list[str]:
    return [str(one.get("label")) for row in components for one in row["components"]]


def _is_menu(row: dict[str, Any]) -> bool:
    return bool(row["components"][0]["type"] == ComponentType.STRING_SELECT)


def _options(components: list[dict[str, Any]]) -> list[str]:
    rows = [row["components"][0]["options"] for row in components if _is_menu(row)]
    return [one["label"] for options in rows for one in options]


async def test_presses_are_acknowledged_once(deployment: Deployment) -> None:
    calls = deployment.platforms.telegram.log
    answered = [one for one in calls if one["method"] == "answerCallbackQuery"]
    ids = [one["params"]["callback_query_id"] for one in answered]
    assert sorted(ids) == sorted(deployment.platforms.telegram.queries)
    requests = deployment.platforms.discord.log
    # A killed process may have acknowledged one that is replayed; then Discord refuses the second.
    callbacks = [
        one["path"]
        for one in requests
        if one["path"].endswith("/callback") and one["status"] in (200, 204)
    ]
    assert len(callbacks) == len(set(callbacks)) > 0
