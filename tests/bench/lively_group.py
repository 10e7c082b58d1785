"""Record an hour of a lively group on both platforms.

The service runs as a process against the servers of the tests. The lines of people and model are
in lively_group.toml. Only the pauses between messages are shortened.
"""

import asyncio
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import discord

from tests.bench.scripted_model import ScriptedModel
from tests.support.chats import (
    RETRY,
    Conversation,
    DiscordChat,
    LoopbackPlatforms,
    TelegramChat,
    running_platforms,
)
from tests.support.service_process import ServiceProcess, preset_json

SCRIPT = Path(__file__).with_suffix(".toml")
PEOPLE = ("Ines", "Tobi", "Mei")
_TELEGRAM_IDS = {"Ines": 11, "Tobi": 12, "Mei": 13}
_TELEGRAM_CHAT = -4242
_PATIENCE_SECONDS = 60.0
_NO_WORD = re.compile(r"\W+")


async def wait_until(condition: Callable[[], Any]) -> None:
    """Look five times a second: a whole channel is read each time.

    Raises:
        TimeoutError: the condition does not become true.
    """
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 # another process makes it so
            await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class BotMessage:
    """A message of the bot as it is shown."""

    author: str
    text: str  # Markdown
    buttons: tuple[str, ...]


@dataclass(slots=True)
class Hour:
    """What was seen on one platform, in order."""

    platform: str
    events: list[tuple[str, str, Any]] = field(default_factory=list)
    """The time of the script, the kind of the event, and what it shows."""
    first_words: list[float] = field(default_factory=list)  # seconds after the question
    whole: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)  # when messages were sent or edited
    sends: int = 0
    lost: int = 0  # responses
    refused: int = 0  # by 429


@dataclass
class GroupRecorder:
    """The channel or group of the three, on one platform."""

    platforms: LoopbackPlatforms
    service: ServiceProcess
    model: ScriptedModel
    where: Conversation
    hour: Hour
    own: dict[str, Any] = field(default_factory=dict)
    """The newest message of each person."""
    asked_at: float = 0.0
    began: float = field(default_factory=time.time)

    @property
    def is_telegram(self) -> bool:
        return self.hour.platform == "Telegram"

    @property
    def chat(self) -> int:
        return self.where.chat

    def snapshot(self) -> dict[int, BotMessage]:
        """Return the bot's messages by their ids, in order."""
        messages, buttons = self.where.bot_messages(), self.where.buttons()
        return {
            self.where.id_of(one): self._shown(one, tuple(labels))
            for one, labels in zip(messages, buttons, strict=True)
        }

    def _shown(self, message: Any, buttons: tuple[str, ...]) -> BotMessage:
        if not self.is_telegram:
            author = message.author_name or "Troupe"
            return BotMessage(author, message.content, buttons)
        marks = {"bold": "**", "italic": "*", "code": "`"}
        text = ""
        for run, kinds in self.platforms.telegram.shown(message):
            mark = "".join(marks.get(kind, "") for kind in sorted(kinds))
            text += f"{mark}{run}{mark[::-1]}" if run.strip() else run
        first, _, rest = text.partition("\n")
        if first.startswith("**") and first.strip("*") in {"Marlowe", "Nora"}:
            return BotMessage(first.strip("*"), rest, buttons)
        return BotMessage("Troupe", text, buttons)

    # --- what people do ------------------------------------------------------------------------

    def say(self, step: Mapping[str, Any], file: Mapping[str, str]) -> None:
        who, text = PEOPLE.index(step["who"]), step["says"]
        self.asked_at = time.time()
        if step.get("file"):
            data = file["text"].strip().encode()
            if self.is_telegram:
                person = self.where.people[who]
                said = self.platforms.telegram.photo(
                    person, data, self.chat, text, document=file["name"]
                )
            else:
                person, files = self.where.people[who], [(file["name"], data)]
                said = self.platforms.discord.say(person, self.chat, text, files=files)
        elif (author := step.get("reply_to")) is not None:
            to = [number for number, one in self.snapshot().items() if one.author == author][-1]
            said = self.where.say(text, who, reply_to=to)
        else:
            said = self.where.say(text, who)
        self.own[step["who"]] = said

    def disturb(self, fault: str) -> None:
        """Lose the response to the next message, or answer it with 429."""
        how: dict[str, Any] = {"retry_after": 2}
        if fault == "lost":
            how = {"drop": True, "after": True}
        self.platforms.telegram.fault("sendMessage", match={"chat_id": str(self.chat)}, **how)
        if not self.is_telegram:
            self.platforms.telegram.faults.clear()
            self.platforms.discord.fault("POST", "/webhooks/*", **how)

    async def kill(self) -> None:
        halfway = self.model.halfway
        await wait_until(lambda: self.model.halfway > halfway)
        await self.service.kill()
        await self.service.start_and_wait()

    # --- what is seen --------------------------------------------------------------------------

    async def play(self, step: Mapping[str, Any], file: Mapping[str, str]) -> None:
        """Do one step of the script, and wait for what the bot does about it."""
        before, at, events = self.snapshot(), step["at"], self.hour.events
        if "note" in step:
            events.append((at, "note", step["note"]))
        if "fault" in step:
            self.disturb(step["fault"])
        if "says" in step:
            self.say(step, file)
            events.append((at, "says", step))
        elif "edits" in step:
            self.asked_at = time.time()
            who = PEOPLE.index(step["who"])
            self.where.edit(self.own[step["who"]], step["edits"], who)
            events.append((at, "edits", step))
        else:
            self.asked_at = time.time()
            label = step["presses"]
            assert label in self.where.buttons()[-1], f"{step}: {[*before.values()][-1]}"
            await self.where.press(label, PEOPLE.index(step["who"]))
            events.append((at, "presses", step))
        if step.get("together"):
            return
        if step.get("kill"):
            await self.kill()
        await self._wait(step, before)
        for number, now in self.snapshot().items():
            old = before.get(number)
            if old is None or old.text != now.text:
                events.append((at, "changes" if old else "answers", now))
        if step.get("answers"):
            self._note_times(before)

    async def _wait(self, step: Mapping[str, Any], before: Mapping[int, BotMessage]) -> None:
        """Wait for what the step says will come."""

        def new() -> list[BotMessage]:
            now = self.snapshot()
            return [
                one
                for number, one in now.items()
                if number not in before or before[number].text != one.text
            ]

        def is_there() -> bool:
            if phrase := step.get("shows"):
                return any(phrase in one.text for one in new())
            if step.get("stops"):
                return any("(stopped)" in one.text and RETRY in one.buttons for one in new())
            if step.get("changes"):
                return bool(new())
            wanted = step.get("answers", 0)
            if not wanted:
                return True
            come = new()
            return (
                len(come) == wanted and all(map(self._is_whole, come)) and RETRY in come[-1].buttons
            )

        try:
            await wait_until(is_there)
        except TimeoutError:
            raise AssertionError(f"{step}: {new()}\n{self.service.log_tail()}") from None

    def _is_whole(self, message: BotMessage) -> bool:
        ends = (_NO_WORD.sub("", text)[-20:] for one in self.model._answers for text in one["says"])
        return _NO_WORD.sub("", message.text).endswith(tuple(ends))

    def _note_times(self, before: Mapping[int, BotMessage]) -> None:
        """Note when the newest answers of the step were opened and whole."""
        starts, ends = [], []
        for number in self.snapshot():
            if number in before:
                continue
            times = self._times_of(number)
            starts.append(min(times) - self.asked_at)
            ends.append(max(times) - self.asked_at)
        if starts:
            self.hour.first_words.append(min(starts))
            self.hour.whole.append(max(ends))

    def _times_of(self, number: int) -> list[float]:
        if self.is_telegram:
            message = self.platforms.telegram.msgs[self.chat][number]
            return [message["_t"], *(at for at, _ in message.get("_history", []))]
        shown = self.platforms.discord.history(self.chat)
        return [at for at, _, said in shown if said["id"] == str(number)]

    def count_calls(self) -> None:
        """Count what was sent and edited for the whole hour."""
        if self.is_telegram:
            calls = [
                (one["t"], one["method"] == "sendMessage", one["status"])
                for one in self.platforms.telegram.log
                if one["method"] in {"sendMessage", "editMessageText"}
                and str(one["params"].get("chat_id")) == str(self.chat)
            ]
        else:
            calls = [
                (one["t"], one["method"] == "POST", one["status"])
                for one in self.platforms.discord.log
                if one["path"].startswith("/webhooks")
            ]
        calls = [one for one in calls if one[0] >= self.began]
        self.hour.calls = [at for at, *_ in calls]
        self.hour.sends = sum(is_send and status != 429 for _, is_send, status in calls)
        self.hour.lost = sum(status == "dropped" for *_, status in calls)
        self.hour.refused = sum(status == 429 for *_, status in calls)


def _open_discord(platforms: LoopbackPlatforms) -> Conversation:
    wire, guild = platforms.discord, platforms.guild
    host = guild.create_role("host", permissions=discord.Permissions(manage_guild=True))
    people = [wire.member(guild, name, roles=[host] * (name == "Ines")) for name in PEOPLE]
    channel = guild.create_text_channel("friday-mystery").id
    return DiscordChat(platforms, "channel", channel, people)


def _open_telegram(platforms: LoopbackPlatforms) -> Conversation:
    wire = platforms.telegram
    wire.me["can_read_all_group_messages"] = True
    for name, number in _TELEGRAM_IDS.items():
        wire.user(number, name)
    wire.chat(_TELEGRAM_CHAT, "supergroup", title="Friday mystery")
    wire.chats[_TELEGRAM_CHAT]["_admins"] = {_TELEGRAM_IDS["Ines"]}
    people = list(_TELEGRAM_IDS.values())
    group = TelegramChat(platforms, "telegram_group", _TELEGRAM_CHAT, people)
    group.mention = ""
    return group


def _is_longer(recorder: GroupRecorder, known: set[int]) -> bool:
    return bool(set(recorder.snapshot()) - known)


async def record(recorder: GroupRecorder, script: Mapping[str, Any], minute_seconds: float) -> None:
    """Set the two characters up, and play the whole script in one group."""
    for command in ("/preset use marlowe", "/preset add nora"):
        known = set(recorder.snapshot())
        recorder.where.tell(command)
        await wait_until(partial(_is_longer, recorder, known))
    recorder.began = time.time()
    at = 0
    for step in script["step"]:
        hour, minute = map(int, step["at"].split(":"))
        now = (hour - 20) * 60 + minute
        if now > at:
            await asyncio.sleep((now - at) * minute_seconds)
        at = now
        await recorder.play(step, script["case_file"])
        await asyncio.sleep(0.2)
    asked = recorder.model.prompts["so what do we do with him"]
    assert "on Sunday, in daylight" in asked, "the edit is not in the history"
    assert "tonight with a lantern" not in asked
    recorder.count_calls()


async def record_on(platform: str, folder: Path, minute_seconds: float) -> Hour:
    """Run the service, and record the hour on one platform."""
    script, hour = tomllib.loads(SCRIPT.read_text("utf-8")), Hour(platform)
    async with running_platforms() as platforms, ScriptedModel(script) as model:
        service = ServiceProcess(folder, platforms, model)
        for name, system in script["systems"].items():
            preset = preset_json(name.lower(), role_name=name, system=system, talkativeness=0.0)
            (service.presets / f"{name.lower()}.json").write_text(preset)
        where = _open_telegram(platforms) if platform == "Telegram" else _open_discord(platforms)
        await service.start_and_wait()
        try:
            await record(
                GroupRecorder(platforms, service, model, where, hour), script, minute_seconds
            )
        finally:
            await service.kill()
    return hour


async def record_both(folder: Path, minute_seconds: float) -> list[Hour]:
    """Record the hour on both platforms at once, by a service each.

    Raises:
        ExceptionGroup: something was not shown as the script says.
    """
    async with asyncio.TaskGroup() as both:
        recording = [
            both.create_task(record_on(platform, folder / platform, minute_seconds))
            for platform in ("Discord", "Telegram")
        ]
    return [one.result() for one in recording]


def busiest_minute(calls: Sequence[float]) -> int:
    """Return the most calls that began within 60 seconds."""
    return max((sum(0 <= other - at < 60 for other in calls) for at in calls), default=0)
