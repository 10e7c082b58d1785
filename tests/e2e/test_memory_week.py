"""Test a week in a group with two characters: which memories each recalls, and to whom.

The results are a part of docs/memory.md, which `TROUPE_WRITE_DOCS=1` updates.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from bot.memory.extraction import NOTE_INSTRUCTION
from tests.checkout import CHECKOUT
from tests.support.chats import Chat, DiscordChat, Platforms, TelegramChat
from tests.support.child_launcher import ChildLauncher
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json
from tests.support.shapes import Installer
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES]
PAGE = CHECKOUT / "docs" / "memory.md"
PEOPLE = ("Mei", "Tobi", "Ines", "Sam")
WEEK = json.loads((Path(__file__).parent / "week.json").read_text(encoding="utf-8"))
ITEMS: Sequence[dict[str, Any]] = [one for day in WEEK["days"].values() for one in day]
MESSAGES = 300
_EXCHANGES = 6
_LINE = re.compile(r"^\[(\d+)\] ([^:]+): (.*)$", re.MULTILINE)
_MEMORY = re.compile(r"\[You remember(?: of [^\]]*)?\] ([^\n]+)")


class WeekModel(Model):
    """A model whose answers and notes follow the script."""

    @override
    def write_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if messages[0]["content"] == NOTE_INSTRUCTION:
            return super().write_answer(messages)
        prompt = "\n".join(str(one["content"]) for one in messages)
        answered = [one for one in ITEMS if "answer" in one]
        return str(max(answered, key=lambda one: prompt.rfind(one["says"]))["answer"])


def scripted_notes(transcript: str) -> list[dict[str, object]]:
    """Return the script's notes about the lines of a transcript."""
    return [
        {"turn": int(turn), "speaker": name, "about": name, "kind": "fact", **one["note"]}
        for turn, name, text in _LINE.findall(transcript)
        for one in ITEMS
        if "note" in one and text == (one["answer"] if one["note"].get("by") else one["says"])
        if name == one["note"].get("by", name)  # another character may react in the same words
    ]


class Week:
    """The script's week on one platform, in a group and private chats."""

    def __init__(
        self, service: Service, model: WeekModel, group: Chat, private: Mapping[str, Chat]
    ) -> None:
        self.recalled: list[list[str]] = []
        """The memories in the prompt of each question for which the script expects memories."""
        self.said = 0
        self._service = service
        self._model = model
        self._chats = {"group": group, **private}
        self._exchanges = Counter[str]()
        self._extractions = len(model.transcripts)
        self._sent: dict[str, Any] = {}

    async def play(self) -> None:
        small_talk = MESSAGES - len(ITEMS)
        for number, one in enumerate(ITEMS, 1):
            await self._play(one)
            while self.said - number < small_talk * number // len(ITEMS):
                self._talk(self.said)

    def _talk(self, number: int) -> None:
        text = WEEK["talk"][number % len(WEEK["talk"])]
        self._chats["group"].say(text, number % len(PEOPLE))
        self.said += 1

    async def _play(self, one: Mapping[str, Any]) -> None:
        place = one["at"]
        chat = self._chats[place]
        who = PEOPLE.index(one["who"]) if "who" in one else 0
        self.said += 1
        if "command" in one:
            before = len(chat.texts())
            tell = chat.tell_as_admin if place == "group" else chat.say
            tell(one["command"])
            await chat.wait_until(lambda: len(chat.texts()) > before or chat.private_texts())
            if one["command"] == "/settings me off":
                of_them = "SELECT 1 FROM memory WHERE text LIKE ? || '%'"
                await wait_until(lambda: not self._service.query(of_them, place))
            return
        if "edits" in one:
            chat.edit(self._sent[one["edits"]], one["says"], who)
            edited = "SELECT 1 FROM turn WHERE text = ?"
            await wait_until(lambda: self._service.query(edited, one["says"]))
            return
        self._sent[one["says"]] = chat.say(one["says"], who)
        await chat.wait_until(lambda: any(text.endswith(one["answer"]) for text in chat.texts()))
        if "recalls" in one:
            self._check(one)
        self._exchanges[place] += 1
        if self._exchanges[place] % _EXCHANGES == 0:
            await self._wait_until_extracted(chat)

    def _check(self, one: Mapping[str, Any]) -> None:
        role = "Marlowe" if "Marlowe," in one["says"] else "Nora"  # the other one may react
        asked = [each for each in self._model.requests if one["says"] in str(each)]
        request = [each for each in asked if f"You are {role}." in str(each)][-1]
        prompt = "\n".join(str(each["content"]) for each in request["messages"])
        found = sorted(_MEMORY.findall(prompt))
        for text in one["recalls"]:
            assert any(each.startswith(text) for each in found), (one, found)
        for text in one["not"]:
            assert text not in prompt, one
        self.recalled.append(found)

    async def _wait_until_extracted(self, chat: Chat) -> None:
        self._extractions += 1
        await wait_until(lambda: len(self._model.transcripts) == self._extractions)
        unread = "SELECT 1 FROM conversation WHERE key = ? AND memory_read_to < memory_asked_to"
        await wait_until(lambda: not self._service.query(unread, chat.name))


def on_discord(platforms: Platforms) -> tuple[Chat, dict[str, Chat]]:
    wire = platforms.discord
    people = [wire.member(platforms.guild, name) for name in PEOPLE]
    channel = platforms.guild.create_text_channel("week").id
    private = {
        name: DiscordChat(platforms, "discord_dm", wire.b.get_dm_channel(one.id).id, [one])
        for name, one in zip(PEOPLE, people, strict=True)
    }
    return DiscordChat(platforms, "channel", channel, people), dict(private)


def on_telegram(platforms: Platforms) -> tuple[Chat, dict[str, Chat]]:
    people = list(range(7001, 7001 + len(PEOPLE)))
    for number, name in zip(people, PEOPLE, strict=True):
        platforms.telegram.user(number, name)
    private = {
        name: TelegramChat(platforms, "telegram_dm", one, [one])
        for name, one in zip(PEOPLE, people, strict=True)
    }
    return TelegramChat(platforms, "telegram_group", -7000, people), dict(private)


@pytest.mark.soak
async def test_characters_recall_only_what_they_may(
    platforms: Platforms, launcher: ChildLauncher, tmp_path: Path, reads_all_messages: None
) -> None:
    async with WeekModel() as model:
        model.take_notes = scripted_notes
        service = Installer(platforms, model, launcher, tmp_path).install()
        for name, role in (("nora", "Nora"), ("marlowe", "Marlowe")):
            text = preset_json(
                name, role_name=role, system=f"You are {role}.", memory=True, busy="queue"
            )
            (service.presets / f"{name}.json").write_text(text)
        try:
            await service.start(TROUPE_DEFAULT_PRESET="nora")
            await service.wait_until_ready()
            weeks = []
            for people_of in (on_discord, on_telegram):
                week = Week(service, model, *people_of(platforms))
                await week.play()
                assert week.said == MESSAGES
                weeks.append(week.recalled)
        finally:
            await service.kill()
    assert weeks[0] == weeks[1]
    assert not any(text in one for one in model.transcripts for text in WEEK["talk"])
    record = "\n".join(page_lines(weeks[0]))
    before, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## Monday\n")
    page = f"{before}\n{record}\n"
    if "TROUPE_WRITE_DOCS" in os.environ:  # noqa: TID251 # a test's own
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def page_lines(recalled: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of the page: the noted messages, and the recalled memories."""
    questions = iter(recalled)
    for day, items in WEEK["days"].items():
        yield f"## {day}\n"
        for one in items:
            if "tells" in one:
                yield f"*{one['tells']}*\n"
            if "recalls" in one:
                yield from _question(one, next(questions))
            elif "note" in one:
                yield from _noted(one)


def _speaker(one: Mapping[str, Any]) -> str:
    return f"**{one['who']}**, in the group" if "who" in one else f"**{one['at']}**, in private"


def _noted(one: Mapping[str, Any]) -> Iterator[str]:
    edit = " (changes the message of Monday)" if "edits" in one else ""
    yield f"{_speaker(one)}{edit}: {one['says']}"
    ends = f", in place of “{one['note']['ends']}”" if "ends" in one["note"] else ""
    yield f"→ noted: {one['note']['note']}{ends}\n"


def _question(one: Mapping[str, Any], found: Sequence[str]) -> Iterator[str]:
    yield f"{_speaker(one)}: {one['says']}\n"
    yield f"> {one['answer']}\n"
    yield f"recalled: {'; '.join(found)}\n"
    yield f"not recalled: {'; '.join(one['not'])}. {one['why']}\n"
