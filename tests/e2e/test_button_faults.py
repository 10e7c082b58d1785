"""Test buttons on both platforms during 429 errors, lost responses, and kills.

The tests check the platform's state: the visible messages, and the log of requests.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from typing_extensions import override

from tests.support.chats import (
    AT_ONCE,
    CONTINUE,
    DELETE,
    NEWER,
    OLDER,
    RETRY,
    STOP,
    Chat,
    Platforms,
)
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(preset_json("tester"))]

KINDS = ("channel", "face", "group")
"""On Discord, the bot itself and the webhook of a character; on Telegram, the bot."""
FAULTS = ("429", "lost")
_RETRY_AFTER = 2
_TELEGRAM = ("sendMessage", "editMessageText", "deleteMessage", "deleteMessages")
_DISCORD = (
    ("POST", "/channels/{}/messages"),
    ("PATCH", "/channels/{}/messages/*"),
    ("DELETE", "/channels/{}/messages/*"),
    ("POST", "/webhooks/{}/*"),
    ("PATCH", "/webhooks/{}/*/messages/*"),
    ("DELETE", "/webhooks/{}/*/messages/*"),
)
_names = (f"{number:04x}" for number in count(0xD000))


class NewWordsModel(Model):
    """A model whose answers all differ, so that versions can be distinguished."""

    @override
    def write_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        said = str(messages[-1]["content"])
        return f"Number {len(self.requests)}: you said “{said}”, and I have thought about it."

    def count_requests(self, answer: str) -> int:
        """Count the model requests that contain the question of this answer."""
        question = answer.partition("“")[2].partition("”")[0]
        return sum(question in str(one["messages"]) for one in self.requests)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[NewWordsModel]:
    async with NewWordsModel() as answering:
        yield answering


@pytest.fixture(scope="module", autouse=True)
def face(service: Service) -> None:
    (service.presets / "nova.json").write_text(preset_json("nova", role_name="Nova"))


@dataclass
class DisturbedChat:
    """A chat whose buttons are pressed during faults."""

    where: Chat

    async def ask_question(self) -> str:
        """Ask a question, and return the answer."""
        self.where.tell(f"what about {next(_names)}?")
        await self.where.wait_for_labels(*AT_ONCE)
        return self.where.texts()[0]

    async def check_nothing_follows(self) -> None:
        """Ask one more question, and check that only its answer follows."""
        where, before = self.where, self.where.texts()
        where.tell(f"and what about {next(_names)}?")
        await where.wait_until(
            lambda: len(where.texts()) > len(before) and where.buttons()[-1] == AT_ONCE
        )
        assert where.texts()[:-1] == before

    async def ask_with_button(self, label: str) -> list[str]:
        """Ask for an answer with this button, and return the texts of its versions."""
        versions = [await self.ask_question()]
        if label == OLDER:
            await self.where.press(RETRY)
            await self.where.wait_for_labels(*AT_ONCE, OLDER, "2/2")
            versions += self.where.texts()
        return versions

    def disturb(self, fault: str) -> None:
        """Disturb the next request of each kind for messages of this chat."""
        how: dict[str, Any] = {"drop": True, "after": True}
        if fault == "429":
            how = {"retry_after": _RETRY_AFTER}
        if self.where.is_telegram:
            for method in _TELEGRAM:
                match = {"chat_id": str(self.where.chat)}
                self.where.platforms.telegram.fault(method, match=match, **how)
        else:
            for method, path in self._paths():
                self.where.platforms.discord.fault(method, path, **how)

    def _paths(self) -> list[tuple[str, str]]:
        chat = self.where.chat
        hooks = self.where.platforms.discord.b.webhooks.values()
        hook = next((one.id for one in hooks if one.channel_id == chat), 0)
        return [
            (method, path.format(hook if path.startswith("/webhooks") else chat))
            for method, path in _DISCORD
        ]

    def end_disturbance(self) -> None:
        """Remove the remaining faults of the chat."""
        if self.where.is_telegram:
            faults, chat = self.where.platforms.telegram.faults, str(self.where.chat)
            faults[:] = [one for one in faults if one["match"]["chat_id"] != chat]
        else:
            faults, paths = self.where.platforms.discord.faults, {one for _, one in self._paths()}
            faults[:] = [one for one in faults if one["path"] not in paths]

    def calls(self) -> list[tuple[str, float, Any]]:
        """Return the route, time, and status of all requests for messages of this chat."""
        if self.where.is_telegram:
            return [
                ("chat", one["t"], one["status"])
                for one in self.where.platforms.telegram.log
                if one["method"] in _TELEGRAM
                and str(one["params"].get("chat_id")) == str(self.where.chat)
            ]
        return [
            (f"{method} {path}", one["t"], one["status"])
            for one in self.where.platforms.discord.log
            for method, path in self._paths()
            if one["method"] == method and fnmatch(one["path"], path)
        ]

    async def shows(self, text: str, *labels: str) -> None:
        """Wait until exactly this message is shown, and check that there was never another one."""
        await self.where.shows(text, labels=labels)
        assert max(self.where.message_counts()) == 1

    def assert_disturbed(self, fault: str) -> None:
        """Check that a fault occurred, and that no request came before the end of a 429's wait."""
        calls = self.calls()
        status: Any = 429 if fault == "429" else "dropped"
        refused = [(route, at) for route, at, got in calls if got == status]
        assert refused, "nothing was disturbed"
        if fault == "429":
            early = [
                (route, later - at)
                for route, at in refused
                for other, later, _ in calls
                if other == route and 0 < later - at < _RETRY_AFTER
            ]
            assert early == []


async def open_chat(platforms: Platforms, kind: str) -> DisturbedChat:
    if kind == "group":
        return DisturbedChat(platforms.telegram_group())
    where = platforms.channel()
    if kind == "face":
        where.tell_as_admin("/preset use nova")
        await where.shows_new()
        for one in where.bot_messages():
            platforms.discord.delete(where.chat, one.id)
    return DisturbedChat(where)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("label", [RETRY, OLDER, CONTINUE, DELETE])
async def test_press_is_handled_once_when_the_platform_fails(
    platforms: Platforms, model: NewWordsModel, fault: str, label: str
) -> None:
    async def press_and_check(chat: DisturbedChat) -> None:
        where, versions = chat.where, await chat.ask_with_button(label)
        asked = model.count_requests(versions[0])
        chat.disturb(fault)
        await where.press(label)
        if label == RETRY:
            await where.wait_for_labels(*AT_ONCE, OLDER, "2/2")
            assert where.texts()[0] not in versions
            assert max(where.message_counts()) == 1
        elif label == OLDER:
            await chat.shows(versions[0], *AT_ONCE, "1/2", NEWER)
        elif label == DELETE:
            await where.shows()
        else:
            await where.wait_until(lambda: where.buttons()[1:] == [AT_ONCE])
            assert where.texts()[0] == versions[0]
            assert max(where.message_counts()) == 2
        chat.assert_disturbed(fault)
        chat.end_disturbance()
        is_asked = label in {RETRY, CONTINUE}
        assert model.count_requests(versions[0]) == asked + is_asked
        await chat.check_nothing_follows()

    async with asyncio.TaskGroup() as chats:
        for kind in KINDS:
            chats.create_task(press_and_check(await open_chat(platforms, kind)))


@pytest.mark.parametrize("fault", [*FAULTS, "kill"])
async def test_stop_takes_effect_even_if_the_platform_fails_or_the_service_is_killed(
    running: Service, platforms: Platforms, model: NewWordsModel, fault: str
) -> None:
    chats = [await open_chat(platforms, kind) for kind in KINDS]
    with model.held():
        for chat in chats:
            chat.where.tell(f"tell me about {next(_names)}")
        for chat in chats:
            await chat.where.wait_for_labels(STOP)
        since = {chat.where.name: len([*chat.where.message_counts()]) - 1 for chat in chats}
        async with model.hanging_up(len(chats)):
            for chat in chats:
                if fault != "kill":
                    chat.disturb(fault)
                await chat.where.press(STOP)
        if fault == "kill":
            await running.kill()
    if fault == "kill":
        await running.start_and_wait()
    for chat in chats:
        await chat.where.wait_for_labels(*AT_ONCE)
        [text] = chat.where.texts()
        counts = [*chat.where.message_counts()][since[chat.where.name] :]
        assert set(counts) == {1}, "it was sent again, or gone meanwhile"
        if fault != "kill":  # then it is written again, at least its first words
            assert text.endswith("⚠ (stopped)")
            chat.assert_disturbed(fault)
    platforms.end_faults()
    for chat in chats:
        await chat.check_nothing_follows()


@pytest.mark.parametrize("kind", ["face", pytest.param("group", marks=pytest.mark.soak)])
async def test_presses_are_handled_once_even_if_the_service_is_killed(
    running: Service, platforms: Platforms, kind: str
) -> None:
    chat = await open_chat(platforms, kind)
    where = chat.where
    versions = [await chat.ask_question()]

    async def press_and_kill(label: str, point: str) -> None:
        async with running.killed_at(point):
            await where.press(label)

    for number, point in enumerate(("during_generation", "after_finish", "after_http"), 2):
        await press_and_kill(RETRY, point)
        await where.wait_for_labels(*AT_ONCE, OLDER, f"{number}/{number}")
        [text] = where.texts()
        assert text not in versions
        versions.append(text)
    for number, point in ((3, "before_finish"), (2, "after_take")):
        await press_and_kill(OLDER, point)
        await chat.shows(versions[number - 1], *AT_ONCE, OLDER, f"{number}/4", NEWER)
    await press_and_kill(CONTINUE, "after_commit")
    await where.wait_until(lambda: where.buttons()[1:] == [AT_ONCE])
    await press_and_kill(DELETE, "after_http")
    await where.shows(versions[1])
    assert max(where.message_counts()) == 2
    await chat.check_nothing_follows()
