"""Buttons pressed around a 429, a lost response and a kill of the service, on both platforms.

What is checked is what the platform has: the messages on the screen, and its log of requests.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from typing_extensions import override

from tests.e2e.child_launcher import running_launcher
from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.shown_messages import (
    AT_ONCE,
    CONTINUE,
    DELETE,
    NEWER,
    OLDER,
    RETRY,
    STOP,
    ShownMessages,
)
from tests.e2e.waiting import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

KINDS = ("channel", "face", "group")
"""The bot itself and the webhook of a character on Discord; the bot on Telegram."""
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


class NewWordsModel(ModelServer):
    """Gives a new answer to every request, so that versions can be told apart."""

    @override
    def write_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        said = str(messages[-1]["content"])
        return f"Number {len(self.requests)}: you said “{said}”, and I have thought about it."


@dataclass
class Deployment:
    """Chats whose buttons are pressed while something goes wrong."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess
    shown: ShownMessages

    async def open(self, kind: str) -> Conversation:
        if kind == "group":
            return self.platforms.telegram_group()
        where = self.platforms.channel()
        if kind == "face":
            channel = int(where.name.removeprefix("discord:"))
            command = f"{where.mention}/preset use nova"
            self.platforms.discord.say(self.platforms.admin, channel, command)
            await wait_until(lambda: self.shown.texts(where))
            for one in self.shown.of(where):
                self.platforms.discord.delete(channel, one.id)
        return where

    async def answered(self, where: Conversation) -> str:
        """Let a question be answered; returns the answer."""
        where.say(f"{where.mention}what about {next(_names)}?", 0)
        await self.shown.labelled(where, AT_ONCE)
        return self.shown.texts(where)[0]

    async def nothing_follows(self, where: Conversation) -> None:
        """Have one more question answered: nothing but its answer comes after what is shown."""
        before = self.shown.texts(where)
        where.say(f"{where.mention}and what about {next(_names)}?", 0)
        await wait_until(
            lambda: (
                len(self.shown.texts(where)) > len(before)
                and self.shown.buttons(where)[-1] == AT_ONCE
            )
        )
        assert self.shown.texts(where)[:-1] == before

    async def prepared(self, where: Conversation, label: str) -> list[str]:
        """Return the versions of an answer under which a button can be pressed."""
        versions = [await self.answered(where)]
        if label == OLDER:
            await self.shown.press(where, RETRY)
            await self.shown.labelled(where, [*AT_ONCE, OLDER, "2/2"])
            versions += self.shown.texts(where)
        return versions

    def disturb(self, where: Conversation, fault: str) -> None:
        """Disturb the next request of each kind that concerns the messages of a chat."""
        chat = where.name.partition(":")[2]
        how: dict[str, Any] = {"drop": True, "after": True}
        if fault == "429":
            how = {"retry_after": _RETRY_AFTER}
        if where.name.startswith("telegram"):
            for method in _TELEGRAM:
                self.platforms.telegram.fault(method, match={"chat_id": chat}, **how)
        else:
            for method, path in _DISCORD:
                self.platforms.discord.fault(method, self._path(path, chat), **how)

    def _path(self, pattern: str, chat: str) -> str:
        hooks = self.platforms.discord.b.webhooks.values()
        hook = next((one.id for one in hooks if one.channel_id == int(chat)), 0)
        return pattern.format(hook if pattern.startswith("/webhooks") else chat)

    def end_disturbance(self, where: Conversation | None = None) -> None:
        """Remove what is left of the faults of a chat, or of all."""
        chat = "" if where is None else where.name.partition(":")[2]
        on_telegram, on_discord = self.platforms.telegram.faults, self.platforms.discord.faults
        on_telegram[:] = [one for one in on_telegram if chat and one["match"]["chat_id"] != chat]
        paths = [self._path(path, chat) for _, path in _DISCORD] if chat else []
        on_discord[:] = [one for one in on_discord if chat and one["path"] not in paths]

    def requests_about(self, answer: str) -> int:
        """Count the requests that the question of an answer is in."""
        question = answer.partition("“")[2].partition("”")[0]
        return sum(question in str(one["messages"]) for one in self.model.requests)

    def calls(self, where: Conversation) -> list[tuple[str, float, Any]]:
        """Return the route, time and status of the requests about messages of a chat."""
        chat = where.name.partition(":")[2]
        if where.name.startswith("telegram"):
            return [
                ("chat", one["t"], one["status"])
                for one in self.platforms.telegram.log
                if one["method"] in _TELEGRAM and str(one["params"].get("chat_id")) == chat
            ]
        return [
            (f"{method} {path}", one["t"], one["status"])
            for one in self.platforms.discord.log
            for method, path in _DISCORD
            if one["method"] == method and fnmatch(one["path"], self._path(path, chat))
        ]

    async def shows(self, where: Conversation, text: str, labels: list[str]) -> None:
        """Wait until this is all that is on the screen, and see that it never was more."""
        await self.shown.shows(where, text, labels)
        assert max(self.shown.counts(where)) == 1

    def assert_disturbed(self, where: Conversation, fault: str) -> None:
        """Check that there was a fault, and that a 429 was waited for in full."""
        calls = self.calls(where)
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    async with NewWordsModel() as model, running_launcher() as launcher:
        folder = tmp_path_factory.mktemp("service")
        service = ServiceProcess(folder, platforms, model, launcher)
        (service.presets / "tester.json").write_text(preset_json("tester"))
        (service.presets / "nova.json").write_text(preset_json("nova", role_name="Nova"))
        await service.start_and_wait()
        yield Deployment(platforms, model, service, ShownMessages(platforms))
        await service.kill()


async def in_every_kind(deployment: Deployment, follow: Callable[[Conversation], Any]) -> None:
    """Do the same in a chat of every kind at once."""
    async with asyncio.TaskGroup() as chats:
        for kind in KINDS:
            chats.create_task(follow(await deployment.open(kind)))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("label", [RETRY, OLDER, CONTINUE, DELETE])
async def test_press_is_followed_once_when_the_platform_fails(
    deployment: Deployment, fault: str, label: str
) -> None:
    shown = deployment.shown

    async def press_and_check(where: Conversation) -> None:
        versions = await deployment.prepared(where, label)
        asked = deployment.requests_about(versions[0])
        deployment.disturb(where, fault)
        await shown.press(where, label)
        if label == RETRY:
            await shown.labelled(where, [*AT_ONCE, OLDER, "2/2"])
            assert shown.texts(where)[0] not in versions
            assert max(shown.counts(where)) == 1
        elif label == OLDER:
            await deployment.shows(where, versions[0], [*AT_ONCE, "1/2", NEWER])
        elif label == DELETE:
            await wait_until(lambda: shown.texts(where) == [])
        else:
            await wait_until(lambda: shown.buttons(where)[1:] == [AT_ONCE])
            assert shown.texts(where)[0] == versions[0]
            assert max(shown.counts(where)) == 2
        deployment.assert_disturbed(where, fault)
        deployment.end_disturbance(where)
        is_asked = label in {RETRY, CONTINUE}
        assert deployment.requests_about(versions[0]) == asked + is_asked
        await deployment.nothing_follows(where)

    try:
        await in_every_kind(deployment, press_and_check)
    finally:
        deployment.end_disturbance()


@pytest.mark.parametrize("fault", [*FAULTS, "kill"])
async def test_stop_holds_when_the_platform_fails_or_the_service_is_killed(
    deployment: Deployment, fault: str
) -> None:
    model, shown = deployment.model, deployment.shown
    chats = [await deployment.open(kind) for kind in KINDS]
    hung_up = model.hung_up
    model.gate.clear()
    try:
        for where in chats:
            where.say(f"{where.mention}tell me about {next(_names)}", 0)
        await wait_until(lambda: all(shown.buttons(where) == [[STOP]] for where in chats))
        since = {where.name: len([*shown.counts(where)]) - 1 for where in chats}
        for where in chats:
            if fault != "kill":
                deployment.disturb(where, fault)
            await shown.press(where, STOP)
        await wait_until(lambda: model.hung_up == hung_up + len(chats))
        if fault == "kill":
            await deployment.service.kill()
    finally:
        model.gate.set()
    if fault == "kill":
        await deployment.service.start_and_wait()
    for where in chats:
        await shown.labelled(where, AT_ONCE)
        [text] = shown.texts(where)
        counts = [*shown.counts(where)][since[where.name] :]
        assert set(counts) == {1}, "it was sent again, or gone meanwhile"
        if fault != "kill":  # then it is written again, at least its first words
            assert text.endswith("⚠ (stopped)")
            deployment.assert_disturbed(where, fault)
    deployment.end_disturbance()
    for where in chats:
        await deployment.nothing_follows(where)


@pytest.mark.parametrize("kind", ["face", "group"])
async def test_presses_are_followed_once_although_the_service_is_killed(
    deployment: Deployment, kind: str
) -> None:
    shown, service = deployment.shown, deployment.service
    where = await deployment.open(kind)
    versions = [await deployment.answered(where)]

    async def press_and_kill(label: str, point: str) -> None:
        async with service.killed_at(point):
            await shown.press(where, label)

    for number, point in enumerate(("during_generation", "after_finish", "after_http"), 2):
        await press_and_kill(RETRY, point)
        await shown.labelled(where, [*AT_ONCE, OLDER, f"{number}/{number}"])
        [text] = shown.texts(where)
        assert text not in versions
        versions.append(text)
    for number, point in ((3, "before_finish"), (2, "after_take")):
        await press_and_kill(OLDER, point)
        labels = [*AT_ONCE, OLDER, f"{number}/4", NEWER]
        await deployment.shows(where, versions[number - 1], labels)
    await press_and_kill(CONTINUE, "after_commit")
    await wait_until(lambda: shown.buttons(where)[1:] == [AT_ONCE])
    await press_and_kill(DELETE, "after_http")
    await wait_until(lambda: shown.texts(where) == versions[1:2])
    assert max(shown.counts(where)) == 2
    await deployment.nothing_follows(where)
