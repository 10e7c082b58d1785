"""The buttons under answers on both platforms, pressed before and after a restart."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from simcord.builders import ChannelHandle
from simcord.enums import ComponentType
from simcord.results import EPHEMERAL_FLAG, ResponseMessage

from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("channel", "group")
AT_ONCE = ["🔄 Retry", "▶ Continue", "🗑 Delete"]
NOT_YOURS = "Only the person who asked the question, or an admin, can use this button."


@dataclass
class Deployment:
    """A channel of each platform, whose people press buttons."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess

    def open(self, kind: str) -> Conversation:
        is_group = kind == "group"
        return self.platforms.telegram_group() if is_group else self.platforms.channel()

    def _messages(self, where: Conversation) -> list[Any]:
        platform, _, chat = where.name.partition(":")
        if platform == "telegram":
            ours = self.platforms.telegram.me["id"]
            found = self.platforms.telegram.msgs[int(chat)].values()
            return [one for one in found if one["from"]["id"] == ours]
        wire = self.platforms.discord
        found = wire.b.messages[int(chat)].values()
        ours = [one for one in found if one.author_id == wire.b.bot_user.id]
        return [one for one in ours if not one.flags & EPHEMERAL_FLAG]

    def texts(self, where: Conversation) -> list[str]:
        """Return what the bot has told everybody there."""
        messages = self._messages(where)
        return [one["text"] if isinstance(one, dict) else one.content for one in messages]

    def buttons(self, where: Conversation) -> list[list[str]]:
        """Return the labels under each message of the bot."""
        return [
            [label for label, _ in self._buttons_of(where, one)] for one in self._messages(where)
        ]

    def _buttons_of(self, where: Conversation, message: Any) -> list[tuple[str, str]]:
        if where.name.startswith("telegram"):
            rows = (message.get("reply_markup") or {}).get("inline_keyboard", [])
            return [(one["text"], one["callback_data"]) for row in rows for one in row]
        [shown] = [
            one
            for one in self.platforms.discord.messages(message.channel_id)
            if one["id"] == str(message.id)
        ]
        found = self.platforms.discord.buttons(shown)
        return [(one["label"], one["custom_id"]) for one in found]

    async def press(self, where: Conversation, label: str, who: int = 0) -> Any:
        """Press a button of the newest message; returns what shows how it was acknowledged."""
        message = self._messages(where)[-1]
        [data] = [data for one, data in self._buttons_of(where, message) if one == label]
        if where.name.startswith("telegram"):
            wire, chat = self.platforms.telegram, message["chat"]["id"]
            return wire.click(TELEGRAM_PEOPLE[who], chat, message["message_id"], data)
        wire = self.platforms.discord
        return await self.platforms.people[who].click(
            ResponseMessage(wire.env, message), custom_id=data
        )

    async def words_alone(self, where: Conversation, press: Any) -> str:
        """Return what the person who pressed is told alone; empty if it is nothing."""
        if where.name.startswith("telegram"):
            queries = self.platforms.telegram.queries
            await wait_until(lambda: queries[press]["answered"] is not None, 20)
            return str(queries[press]["answered"])
        await wait_until(lambda: bool(press.acknowledged), 20)
        return str(press.response.content) if press.ephemeral else ""

    async def shows(self, where: Conversation, text: str, labels: list[str]) -> None:
        """Wait until one message of the bot is there, with this text and these buttons."""
        await wait_until(
            lambda: self.texts(where) == [text] and self.buttons(where) == [labels],
            20,
        )

    async def restart(self) -> None:
        await self.service.kill()
        await self.service.start_and_wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> AsyncIterator[Deployment]:
    await service.start_and_wait()
    yield Deployment(platforms, model, service)


@pytest.mark.parametrize("kind", KINDS)
async def test_buttons_work_after_a_restart_for_who_asked(
    deployment: Deployment, kind: str
) -> None:
    where = deployment.open(kind)
    where.ask("ab01")
    answer = expected_answer("Tab01:12")
    await deployment.shows(where, answer, AT_ONCE)
    await deployment.restart()
    asked = len(deployment.model.requests)
    for label in AT_ONCE:
        refused = await deployment.press(where, label, who=1)
        assert await deployment.words_alone(where, refused) == NOT_YOURS
    pressed = await deployment.press(where, "🔄 Retry")
    assert await deployment.words_alone(where, pressed) == ""
    await deployment.shows(where, answer, [*AT_ONCE, "‹", "2/2"])
    assert len(deployment.model.requests) == asked + 1
    await deployment.press(where, "‹")
    await deployment.shows(where, answer, [*AT_ONCE, "1/2", "›"])
    await deployment.restart()
    await deployment.press(where, "›")
    await deployment.shows(where, answer, [*AT_ONCE, "‹", "2/2"])
    await deployment.press(where, "🗑 Delete")
    await wait_until(lambda: deployment.texts(where) == [], 20)


@pytest.mark.parametrize("kind", KINDS)
async def test_stop_button_ends_the_answer(deployment: Deployment, kind: str) -> None:
    where = deployment.open(kind)
    halfway, hung_up = deployment.model.halfway, deployment.model.hung_up
    deployment.model.gate.clear()
    try:
        where.ask("ab02", 40)
        await wait_until(lambda: deployment.model.halfway > halfway, 20)
        await wait_until(lambda: deployment.buttons(where) == [["⏹ Stop"]], 20)
        refused = await deployment.press(where, "⏹ Stop", who=1)
        assert await deployment.words_alone(where, refused) == NOT_YOURS
        assert deployment.model.hung_up == hung_up
        await deployment.press(where, "⏹ Stop")
        await wait_until(lambda: deployment.model.hung_up > hung_up, 20)
    finally:
        deployment.model.gate.set()
    await wait_until(lambda: deployment.buttons(where) == [AT_ONCE], 20)
    [shown] = deployment.texts(where)
    assert shown.endswith("⚠ (stopped)")


async def test_menus_on_discord_are_their_authors_and_everybody_is_told(
    deployment: Deployment,
) -> None:
    platforms = deployment.platforms
    channel = platforms.guild.create_text_channel("menus")
    shown = await platforms.admin.slash(channel, "settings menu")
    await wait_until(lambda: shown.response and shown.response.components, 20)
    assert shown.ephemeral
    assert shown.response.content.startswith("Who answers here: tester (the default)")
    await deployment.restart()
    presets = await platforms.admin.click(shown.response, label="🎭 Who answers")
    await wait_until(lambda: presets.acknowledged, 20)
    await wait_until(lambda: _options(shown.response.components) == ["nova", "tester"], 20)
    [menu] = [row["components"][0] for row in shown.response.components if _is_menu(row)]
    [value] = [one["value"] for one in menu["options"] if one["label"] == "nova"]
    await platforms.admin.select(shown.response, [value], custom_id=menu["custom_id"])
    chosen = "Who answers here: nova (chosen for this channel)"
    await wait_until(lambda: shown.response.content.startswith(chosen), 20)
    told = "Changed by admin: nova answers here from now on."
    everybody = Conversation(f"discord:{channel.id}", "", print, print)
    await wait_until(lambda: deployment.texts(everybody) == [told], 20)


async def test_menus_on_telegram_are_locked_to_their_author(deployment: Deployment) -> None:
    where, wire = deployment.open("group"), deployment.platforms.telegram
    where.say("hello everybody", 1)
    chat = int(where.name.removeprefix("telegram:"))
    wire.chats[chat]["_admins"] = set(TELEGRAM_PEOPLE)
    where.say("/preset menu", 0)
    await wait_until(lambda: any("nova" in labels for labels in deployment.buttons(where)), 20)
    await deployment.restart()
    refused = await deployment.press(where, "nova", who=1)
    only_author = "Only the person who asked for it can use this button."
    assert await deployment.words_alone(where, refused) == only_author
    pressed = await deployment.press(where, "nova")
    assert await deployment.words_alone(where, pressed) == ""
    told = "Changed by U1: nova answers here from now on."
    await wait_until(lambda: deployment.texts(where)[1:] == [told], 20)
    assert deployment.texts(where)[0].startswith("Who answers here: nova (chosen for this channel)")
    [labels, _] = deployment.buttons(where)
    assert labels == ["✓ nova", "tester", "↩ Inherited", "⚙ Settings"]


async def test_commands_in_the_menu_of_a_message(deployment: Deployment) -> None:
    platforms, model = deployment.platforms, deployment.model
    where = deployment.open("channel")
    alice, bob = platforms.people
    channel = _channel_handle(deployment, where)

    async def call(who: Any, name: str, message: Any) -> Any:
        result = await who.context_menu(
            channel, name, ResponseMessage(platforms.discord.env, message)
        )
        await wait_until(lambda: result.response and result.response.content, 20)
        assert result.ephemeral
        return result.response.content

    where.ask("ab03")
    answer = expected_answer("Tab03:12")
    await deployment.shows(where, answer, AT_ONCE)
    [shown] = deployment._messages(where)
    assert (await call(alice, "Inspect", shown)).startswith("tester")
    assert await call(bob, "Retry from here", shown) == (
        "⚠ Only an admin can retry or undo a question that somebody else asked."
    )
    asked = len(model.requests)
    assert await call(alice, "Retry from here", shown) == "The question is answered again below."
    assert deployment.texts(where) == [answer, answer]
    assert len(model.requests) == asked + 1
    assert [one["role"] for one in model.requests[-1]["messages"]] == ["system", "user"]
    [_, shown] = deployment._messages(where)
    form = await alice.context_menu(channel, "Edit", ResponseMessage(platforms.discord.env, shown))
    await wait_until(lambda: form.modal, 20)
    assert answer in str(form.modal)
    await deployment.restart()
    changed = await alice.submit_modal(form, {"text": "It was **quiet**."})
    await wait_until(lambda: changed.response and changed.response.content == "Changed.", 20)
    await wait_until(lambda: deployment.texts(where) == [answer, "It was **quiet**."], 20)
    assert deployment.buttons(where)[1] == [*AT_ONCE, "‹", "2/2"]
    admin_forgets = await call(platforms.admin, "Forget", shown)
    assert admin_forgets.startswith("I have forgotten that message")


def _channel_handle(deployment: Deployment, where: Conversation) -> ChannelHandle:
    wire, guild = deployment.platforms.discord, deployment.platforms.guild
    number = int(where.name.removeprefix("discord:"))
    return ChannelHandle(wire.env, guild, wire.b.get_channel(number))


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
    callbacks = [one["path"] for one in requests if one["path"].endswith("/callback")]
    assert len(callbacks) == len(set(callbacks)) > 0
