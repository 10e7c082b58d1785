"""/forget me and /export on the wires of both platforms, with the service as a process."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.backends.local_model import lend_model
from tests.e2e.child_launcher import running_launcher
from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.shown_messages import ShownMessages
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

GROUPS = ("channel", "telegram_group")
QUESTION = "Delete everything that you said in all channels"
FORGET, KEEP = "Forget everything I said", "Keep it"
_SECONDS_TO_FORGET = 60
LOCAL = {
    "name": "keeper",
    "provider": "local",
    "model": "default",
    "system": "You keep the light of a small harbour. " * 10,  # short prompts are not saved
    "busy": "queue",
    "max_output_tokens": 2,
    "max_rounds": 1,
    "summary": {"provider": "test", "model": "m"},
}
"""A local model with one slot, so that another chat has it saved; with summaries."""


@dataclass
class Deployment:
    """Channels of both platforms in which two people say what only they may take back."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess
    shown: ShownMessages

    async def say(self, where: Conversation, text: str, who: int = 0) -> None:
        """Say something to the bot, and wait for its answer."""
        before = len(self.shown.texts(where))
        where.say(f"{where.mention}{text}", who)
        await wait_until(lambda: self.shown.texts(where)[before:] == [expected_answer(text)])

    def stored(self) -> bytes:
        return b"".join(file.read_bytes() for file in self.service.data.glob("*.db*"))

    def summaries(self) -> list[str]:
        address = f"file:{self.service.data}/troupe.db?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as database:
            return [text for (text,) in database.execute("SELECT text FROM summary")]

    def saved_slots(self) -> list[Path]:
        return list((self.service.data / "slots").glob("*"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    async with running_launcher() as launcher:
        folder = tmp_path_factory.mktemp("service")
        service = ServiceProcess(folder, platforms, model, launcher)
        await lend_model(service.data)
        service.settings |= {
            "TROUPE_PROVIDERS__LOCAL__KIND": "llama_cpp",
            "TROUPE_PROVIDERS__LOCAL__PARALLEL": "1",
            "TROUPE_PROVIDERS__LOCAL__THREADS": "1",
            "TROUPE_PROVIDERS__LOCAL__CONTEXT_TOKENS": "1024",
        }
        (service.presets / "keeper.json").write_text(json.dumps(LOCAL))
        await service.start_and_wait()
        yield Deployment(platforms, model, service, ShownMessages(platforms))
        await service.kill()


@pytest.mark.parametrize("kind", GROUPS)
async def test_forget_me_asks_and_reaches_every_channel_also_after_a_kill(
    deployment: Deployment, kind: str
) -> None:
    shown, service = deployment.shown, deployment.service
    open_channel = getattr(deployment.platforms, kind)
    here, elsewhere = open_channel(), open_channel()
    mine, theirs = f"mine-of-{kind}", f"theirs-of-{kind}"
    await deployment.say(here, f"{mine} Ta01:3")
    await deployment.say(here, f"{theirs} Ta02:3", who=1)
    await deployment.say(elsewhere, f"{mine} Ta03:3")

    here.say(f"{here.mention}/forget me", 0)
    await wait_until(lambda: shown.texts(here)[-1].startswith(QUESTION))
    assert mine.encode() in deployment.stored()
    refused = await shown.press(here, FORGET, who=1)
    only_author = "Only the person who asked for it can use this button."
    assert await shown.words_alone(here, refused) == only_author
    async with service.killed_at("after_commit"):
        await shown.press(here, FORGET)
    await wait_until(lambda: shown.texts(here)[-1].startswith("I am now deleting everything"))
    assert shown.buttons(here)[-1] == []
    await wait_until(lambda: mine.encode() not in deployment.stored(), _SECONDS_TO_FORGET)
    assert theirs.encode() in deployment.stored()

    for channel, token in ((here, "Ta04:3"), (elsewhere, "Ta05:3")):
        await deployment.say(channel, token)
        request = str(deployment.model.requests[-1])
        assert token in request
        assert mine not in request
        assert (theirs in request) == (channel is here)


async def test_forget_me_reaches_summaries_and_saved_slots(deployment: Deployment) -> None:
    shown, platforms = deployment.shown, deployment.platforms
    where, other = platforms.telegram_dm(), platforms.telegram_dm()
    for chat in (where, other):
        chat.say("/preset use keeper", 0)
    for _ in range(4):
        where.say("Remember Tadded5ea:3", 0)
    await wait_until(lambda: expected_answer("Tadded5ea:3") in deployment.summaries())
    other.say("Good evening", 0)
    await wait_until(lambda: len(deployment.saved_slots()) == len((".state", ".ids")))

    where.say("/forget me", 0)
    await wait_until(lambda: shown.texts(where)[-1].startswith(QUESTION))
    assert b"Tadded5ea" in deployment.stored()
    await shown.press(where, FORGET)

    def is_forgotten() -> bool:
        rows = deployment.summaries() or b"added5ea" in deployment.stored()
        return not rows and not deployment.saved_slots()

    await wait_until(is_forgotten, _SECONDS_TO_FORGET)


@pytest.mark.parametrize("kind", GROUPS)
async def test_forget_me_is_confirmed_within_15_minutes(deployment: Deployment, kind: str) -> None:
    shown, where = deployment.shown, getattr(deployment.platforms, kind)()
    mine = f"late-of-{kind}"
    await deployment.say(where, f"{mine} Td01:3")
    where.say(f"{where.mention}/forget me", 0)
    await wait_until(lambda: shown.texts(where)[-1].startswith(QUESTION))
    async with deployment.service.killed_at("after_commit"):
        where.say(f"{where.mention}hello Td02:3", 1)
    late = await shown.press(where, FORGET, seconds_later=1000)
    refusal = (
        "This button works for 15 minutes only, so nothing was deleted. Send /forget me again."
    )
    assert await shown.words_alone(where, late) == refusal
    assert mine.encode() in deployment.stored()


@pytest.mark.parametrize("kind", GROUPS)
async def test_forget_me_can_be_declined(deployment: Deployment, kind: str) -> None:
    where = getattr(deployment.platforms, kind)()
    await deployment.say(where, f"kept-of-{kind} Tb01:3")
    where.say(f"{where.mention}/forget me", 0)
    await wait_until(lambda: deployment.shown.texts(where)[-1].startswith(QUESTION))
    await deployment.shown.press(where, KEEP)
    await wait_until(lambda: deployment.shown.texts(where)[-1] == "Nothing was deleted.")
    await deployment.say(where, "Tb02:3")
    assert f"kept-of-{kind}" in str(deployment.model.requests[-1])


async def test_operator_deletes_a_channel_beside_the_running_service(
    deployment: Deployment,
) -> None:
    gone, kept = deployment.platforms.channel(), deployment.platforms.telegram_group()
    await deployment.say(gone, "of-the-left-server Tc01:3")
    await deployment.say(kept, "of-another-group Tc02:3")
    printed = await deployment.service.run_command("forget", "--channel", gone.name)
    assert printed == f"{gone.name} is forgotten in conversations: 1\n"
    await wait_until(lambda: b"of-the-left-server" not in deployment.stored(), _SECONDS_TO_FORGET)
    assert b"of-another-group" in deployment.stored()


async def test_export_on_telegram_comes_in_private_and_has_the_own_words_only(
    deployment: Deployment,
) -> None:
    platforms, wire = deployment.platforms, deployment.platforms.telegram
    group, alone = platforms.telegram_group(), platforms.telegram_dm()
    person = int(alone.name.removeprefix("telegram:"))
    chat = int(group.name.removeprefix("telegram:"))
    wire.say(person, f"{group.mention}in the group Tc01:3", chat=chat)
    await wait_until(lambda: expected_answer("Tc01:3") in platforms.bot_texts(group))
    await deployment.say(group, "by somebody else Tc02:3", who=1)
    await deployment.say(alone, "in private Tc03:3")

    wire.fault("sendDocument", drop=True, after=True, match={"chat_id": person})
    wire.say(person, f"/export@{wire.me['username']}", chat=chat)
    told = "I am sending you the file in a private chat."
    await wait_until(lambda: platforms.bot_texts(group)[-1].startswith(told))
    [sent] = await wait_until(
        lambda: [one for one in wire.msgs[person].values() if "document" in one]
    )
    assert sent["caption"] == "What you have said to me: 2 messages."
    _, data = wire.files[sent["document"]["file_id"]]
    assert said_in(data) == ["in the group Tc01:3", "in private Tc03:3"]
    assert not [one for one in wire.msgs[chat].values() if "document" in one]
    alone.say("/export", 0)
    await wait_until(
        lambda: len([one for one in wire.msgs[person].values() if "document" in one]) == 2
    )
    printed = await deployment.service.run_command("export", "--user", alone.name)
    assert said_in(printed) == said_in(data)


async def test_export_on_discord_comes_in_private(deployment: Deployment) -> None:
    platforms = deployment.platforms
    where = platforms.channel()
    await deployment.say(where, "in the channel Td01:3", who=1)
    await deployment.say(where, "by somebody else Td02:3", who=0)
    channel = platforms.guild.create_text_channel("exports")
    result = await platforms.people[1].slash(channel, "export")
    told = await wait_until(lambda: result.response and result.response.content)
    assert result.response.ephemeral
    assert told.startswith("I am sending you the file in a private chat.")
    private = platforms.discord.b.get_dm_channel(platforms.people[1].id)
    [sent] = await wait_until(lambda: platforms.discord.messages(private.id))
    assert sent["content"].startswith("What you have said to me:")
    [file] = sent["attachments"]
    words = said_in(platforms.discord.b.cdn.get(file["url"]))
    assert "in the channel Td01:3" in words
    assert not [one for one in words if "by somebody else Td02" in one]
    everybody = Conversation(f"discord:{channel.id}", "", print, print)
    assert deployment.shown.texts(everybody) == []


def said_in(data: Any) -> list[str]:
    """Return the messages of an exported file."""
    return [one["text"] for one in json.loads(data)["messages"]]
