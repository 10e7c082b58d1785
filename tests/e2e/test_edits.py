"""Edits, deletions and media on both platforms, with the service as a process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("channel", "discord_dm", "group", "telegram_dm")


@dataclass
class Deployment:
    """A conversation of every kind, and the service that answers there."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess

    def open(self, kind: str) -> Conversation:
        made = {
            "channel": self.platforms.channel,
            "discord_dm": self.platforms.discord_dm,
            "group": self.platforms.telegram_group,
            "telegram_dm": self.platforms.telegram_dm,
        }
        return made[kind]()

    def edit(self, where: Conversation, message: Any, text: str) -> None:
        if isinstance(message, dict):
            chat = int(where.name.removeprefix("telegram:"))
            person = chat if chat > 0 else TELEGRAM_PEOPLE[0]
            self.platforms.telegram.edit(person, chat, message["message_id"], text)
        else:
            self.platforms.discord.edit(message.channel_id, message.id, text)

    async def shows(self, where: Conversation, *texts: str) -> None:
        """Wait until the bot's messages there are exactly these."""
        await wait_until(lambda: self.platforms.bot_texts(where) == list(texts))

    def asked_about(self, token: str) -> list[dict[str, Any]]:
        """Return the requests of the model whose newest message has this token."""
        return [one for one in self.model.requests if token in one["messages"][-1]["content"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> AsyncIterator[Deployment]:
    await service.start_and_wait()
    yield Deployment(platforms, model, service)


@pytest.mark.parametrize("kind", KINDS)
async def test_edited_question_is_answered_again_in_place(
    deployment: Deployment, kind: str
) -> None:
    where = deployment.open(kind)
    asked = where.ask("aa01")
    await deployment.shows(where, expected_answer("Taa01:12"))
    deployment.edit(where, asked, f"{where.mention}please Taa02:9")
    await deployment.shows(where, expected_answer("Taa02:9"))
    later = where.ask("aa03")
    await deployment.shows(where, expected_answer("Taa02:9"), expected_answer("Taa03:12"))
    prompt = str(deployment.asked_about("Taa03")[-1])
    assert "Taa02" in prompt
    assert "Taa01" not in prompt

    deployment.edit(where, later, f"{where.mention}please Taa04:700")  # longer than one message
    texts = deployment.platforms.bot_texts
    await wait_until(lambda: " ".join(texts(where)[1:]) == expected_answer("Taa04:700"))
    deployment.edit(where, later, f"{where.mention}please Taa05:3")
    await deployment.shows(where, expected_answer("Taa02:9"), expected_answer("Taa05:3"))


@pytest.mark.parametrize("kind", KINDS)
async def test_edit_during_the_answer_leaves_one_answer(deployment: Deployment, kind: str) -> None:
    where = deployment.open(kind)
    halfway = deployment.model.halfway
    deployment.model.gate.clear()
    asked = where.ask("bb01", 40)
    await wait_until(lambda: deployment.model.halfway > halfway)
    deployment.edit(where, asked, f"{where.mention}please Tbb02:9")
    await wait_until(lambda: bool(deployment.asked_about("Tbb02")))
    deployment.model.gate.set()
    await deployment.shows(where, expected_answer("Tbb02:9"))


@pytest.mark.parametrize("kind", KINDS)
async def test_newest_of_many_edits_supersedes_the_others(
    deployment: Deployment, kind: str
) -> None:
    where, answered = deployment.open(kind), deployment.model.requests
    asked = where.ask("bc00")
    await deployment.shows(where, expected_answer("Tbc00:12"))
    before = len(answered)
    for number in range(100):
        deployment.edit(where, asked, f"{where.mention}please Tbd{number:02}:9")
    await deployment.service.kill()
    await deployment.service.start_and_wait()
    await deployment.shows(where, expected_answer("Tbd99:9"))
    assert len(answered) - before < 10


@pytest.mark.parametrize("kind", KINDS)
async def test_edit_of_an_older_message_changes_the_history(
    deployment: Deployment, kind: str
) -> None:
    where = deployment.open(kind)
    first, second = where.ask("cc01"), where.ask("cc02")
    answers = expected_answer("Tcc01:12"), expected_answer("Tcc02:12")
    await deployment.shows(where, *answers)
    deployment.edit(where, first, f"{where.mention}please Tcc03:12")
    where.ask("cc04")
    await deployment.shows(where, *answers, expected_answer("Tcc04:12"))
    prompt = str(deployment.asked_about("Tcc04")[-1])
    assert "Tcc03" in prompt
    assert "Tcc01:12" not in prompt
    assert second is not None


@pytest.mark.parametrize("kind", ["channel", "group"])
async def test_question_that_loses_its_mention_is_withdrawn(
    deployment: Deployment, kind: str
) -> None:
    where = deployment.open(kind)
    if kind == "group":  # bots with privacy mode receive no edit that does not mention them
        deployment.platforms.telegram.me["can_read_all_group_messages"] = True
    asked = where.ask("dd01")
    await deployment.shows(where, expected_answer("Tdd01:12"))
    deployment.edit(where, asked, "please Tdd01:12")  # it reads the same without the mention
    await deployment.shows(where)
    where.ask("dd02")
    await deployment.shows(where, expected_answer("Tdd02:12"))
    prompt = deployment.asked_about("Tdd02")[-1]
    assert "please Tdd01:12" in prompt["messages"][-1]["content"]  # as background
    asked = where.ask("dd03")
    await deployment.shows(where, expected_answer("Tdd02:12"), expected_answer("Tdd03:12"))
    deployment.edit(where, asked, "never mind")
    await deployment.shows(where, expected_answer("Tdd02:12"))


async def test_deleted_messages_leave_the_history_on_discord(deployment: Deployment) -> None:
    where = deployment.open("channel")
    first, second = where.ask("ee01"), where.ask("ee02")
    await deployment.shows(where, expected_answer("Tee01:12"), expected_answer("Tee02:12"))
    deployment.platforms.discord.delete(first.channel_id, first.id)
    wire = deployment.platforms.discord
    ours = [one.id for one in wire.b.messages[first.channel_id].values() if one.id != second.id]
    wire.b.bulk_delete_messages(first.channel_id, ours)
    where.ask("ee03")
    await deployment.shows(where, expected_answer("Tee03:12"))
    prompt = str(deployment.asked_about("Tee03")[-1])
    assert "Tee02" in prompt
    assert "Tee01" not in prompt
    assert "REee02" not in prompt


@pytest.mark.parametrize("kind", ["channel", "discord_dm"])
async def test_question_deleted_before_its_answer_is_complete_is_withdrawn(
    deployment: Deployment, kind: str
) -> None:
    where, name = deployment.open(kind), "ab" if kind == "channel" else "ac"
    model, wire = deployment.model, deployment.platforms.discord
    halfway = model.halfway
    model.gate.clear()
    try:
        asked = where.ask(f"{name}01", 40)
        await wait_until(lambda: model.halfway > halfway)
        await wait_until(lambda: deployment.platforms.bot_texts(where))
        waiting, _ = where.ask(f"{name}02"), where.ask(f"{name}03")
        wire.delete(waiting.channel_id, waiting.id)
        wire.delete(asked.channel_id, asked.id)
        await wait_until(lambda: deployment.asked_about(f"T{name}03"))
    finally:
        model.gate.set()
    await deployment.shows(where, expected_answer(f"T{name}03:12"))
    assert not deployment.asked_about(f"T{name}02")
    stored = b"".join(file.read_bytes() for file in deployment.service.data.glob("*.db*"))
    assert f"T{name}01".encode() not in stored
    assert f"T{name}03".encode() in stored


async def test_forget_as_a_reply_deletes_a_message_on_telegram(deployment: Deployment) -> None:
    where = deployment.open("telegram_dm")
    asked = where.ask("ff01")
    await deployment.shows(where, expected_answer("Tff01:12"))
    chat = int(where.name.removeprefix("telegram:"))
    deployment.platforms.telegram.say(chat, "/forget", reply_to=asked["message_id"])
    forgotten = "I have forgotten that message and everything that was stored about it."
    await deployment.shows(where, expected_answer("Tff01:12"), forgotten)
    where.ask("ff02")
    await wait_until(lambda: len(deployment.platforms.bot_texts(where)) == 3)
    assert "please Tff01" not in str(deployment.asked_about("Tff02")[-1])
    stored = b"".join(file.read_bytes() for file in deployment.service.data.glob("*.db*"))
    assert b"please Tff01" not in stored
    assert b"please Tff02" in stored


async def test_media_without_text_in_private_get_a_clear_word(deployment: Deployment) -> None:
    on_telegram = deployment.open("telegram_dm")
    wire, chat = deployment.platforms.telegram, int(on_telegram.name.removeprefix("telegram:"))
    wire.voice(chat)
    wire.sticker(chat)
    wire.photo(chat, b"\xff\xd8\xff" + bytes(64))
    wire.drop(chat, checklist={"title": "shopping", "tasks": [{"id": 1, "text": "milk"}]})
    words = ["listen to voice messages", "see stickers", "look at pictures"]
    words.append("read messages of this kind")

    def shows_all() -> bool:
        texts = deployment.platforms.bot_texts(on_telegram)  # "…" at first
        pairs = zip(words, texts, strict=False)
        return len(texts) == len(words) and all(word in text for word, text in pairs)

    await wait_until(shows_all)

    on_discord = deployment.platforms.discord
    who = on_discord.member(deployment.platforms.guild, "photographer")
    channel = on_discord.b.get_dm_channel(who.id).id
    on_discord.say(who, channel, "", files=[("cat.png", b"\x89PNG" + bytes(64))])
    where = Conversation(f"discord:{channel}", "", lambda *_: None, lambda *_: None)
    await wait_until(
        lambda: any("look at pictures" in one for one in deployment.platforms.bot_texts(where)), 20
    )
    assert len(deployment.platforms.bot_texts(where)) == 1
