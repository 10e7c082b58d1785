"""One service on both platforms: the path of a message, and failures along it."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from simcord.backend.errors import SetupError

from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import check_transcripts, expected_answer
from tests.e2e.waiting import wait_until
from tests.valkey import find_valkey, run_valkey

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("channel", "discord_thread", "discord_dm", "group", "topic", "telegram_dm")
_EPHEMERAL = 1 << 6
_names = (f"{number:04x}" for number in itertools.count())


@dataclass
class Deployment:
    """A conversation of every kind, and the service that answers there."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess
    conversations: dict[str, Conversation]

    def ask(self, kind: str, words: int = 12) -> str:
        """Ask in a conversation and return the expected answer."""
        name = next(_names)
        self.conversations[kind].ask(name, words)
        return expected_answer(f"T{name}:{words}")

    def answers(self, kind: str) -> list[str]:
        return self.platforms.bot_texts(self.conversations[kind])

    async def answered(self, kind: str, answer: str, seconds: float = 15) -> None:
        """Wait until this was answered, and check that it was answered once."""
        await wait_until(lambda: answer in self.answers(kind), seconds)
        assert self.answers(kind).count(answer) == 1

    def identifies(self) -> int:
        return sum(name == "<op2" for _, name, _ in self.platforms.discord.events)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms,
    model: ModelServer,
    service: ServiceProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Deployment]:
    conversations = {
        "channel": platforms.channel(),
        "discord_thread": platforms.discord_thread(),
        "discord_dm": platforms.discord_dm(),
        "group": platforms.telegram_group(),
        "topic": platforms.telegram_topics()[1],
        "telegram_dm": platforms.telegram_dm(),
    }
    async with run_valkey(tmp_path_factory.mktemp("valkey")) as url:
        service.settings["TROUPE_REDIS_URL"] = url  # the kill test runs without
        await service.start_and_wait()
        yield Deployment(platforms, model, service, conversations)
        if service.is_running:
            await service.stop()


@pytest.fixture(autouse=True)
def even_delays(model: ModelServer) -> None:
    model.chunk_delays, model.chunk_count = (0.01,), 4
    model.gate.set()


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_question_is_answered_in_its_conversation(deployment: Deployment, kind: str) -> None:
    answer = deployment.ask(kind)
    await deployment.answered(kind, answer)


@pytest.mark.parametrize("kind", ["channel", "group"])
async def test_reply_needs_no_mention(deployment: Deployment, kind: str) -> None:
    await deployment.answered(kind, deployment.ask(kind))
    name = next(_names)
    deployment.conversations[kind].reply(f"and T{name}:3")
    await deployment.answered(kind, expected_answer(f"T{name}:3"))


async def test_messages_for_others_and_of_bots_are_not_answered(deployment: Deployment) -> None:
    platforms, before = (
        deployment.platforms,
        len([post for post in deployment.platforms.messages() if post.by_bot]),
    )
    other = platforms.discord.member(platforms.guild, "other", bot=True)
    channel = int(deployment.conversations["channel"].name.removeprefix("discord:"))
    platforms.discord.say(other, channel, f"{deployment.conversations['channel'].mention}hello")
    platforms.telegram.user(99, is_bot=True)
    group = int(deployment.conversations["group"].name.removeprefix("telegram:"))
    platforms.telegram.say(99, f"{deployment.conversations['group'].mention}hello", chat=group)
    deployment.conversations["channel"].say("not to you", 0)
    deployment.conversations["group"].say("not to you", 0)

    for kind in ("channel", "group"):
        await deployment.answered(kind, deployment.ask(kind))

    assert len([post for post in platforms.messages() if post.by_bot]) == before + 2


@pytest.mark.parametrize(("kind", "limit"), [("channel", 2000), ("telegram_dm", 4096)])
async def test_long_answer_is_split_in_order(deployment: Deployment, kind: str, limit: int) -> None:
    deployment.model.grow_slowly()
    before = len(deployment.answers(kind))
    answer = deployment.ask(kind, 1300)
    await wait_until(lambda: " ".join(deployment.answers(kind)[before:]) == answer)
    parts = deployment.answers(kind)[before:]
    assert len(parts) > 1
    assert all(len(part) <= limit for part in parts)


# --- failures of platforms -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sendMessage", "editMessageText"])
async def test_telegram_rate_limit_is_respected(deployment: Deployment, method: str) -> None:
    wire = deployment.platforms.telegram
    if method == "editMessageText":
        deployment.model.grow_slowly()
    wire.fault(method, retry_after=2)
    answer = deployment.ask("telegram_dm")
    is_refused = await wait_until(lambda: next((e for e in wire.log if e["status"] == 429), None))
    await deployment.answered("telegram_dm", answer)
    is_refused["status"] = "seen"
    window = [e for e in wire.log if is_refused["t"] < e["t"] < is_refused["t"] + 2]
    assert [e["method"] for e in window if "chat_id" in e["params"]] == []


@pytest.mark.parametrize("retry_after", [2.0, 8.0])
async def test_discord_rate_limit_is_respected(deployment: Deployment, retry_after: float) -> None:
    wire = deployment.platforms.discord
    wire.fault("POST", "/channels/*/messages", retry_after=retry_after)
    answer = deployment.ask("channel")
    is_refused = await wait_until(lambda: next((e for e in wire.log if e["status"] == 429), None))
    await deployment.answered("channel", answer)
    is_refused["status"] = "seen"
    window = [e for e in wire.log if is_refused["t"] < e["t"] < is_refused["t"] + retry_after]
    assert [e["path"] for e in window] == []


@pytest.mark.parametrize("fault", [{"error_code": 502}, {"drop": True}, {"raw": "<html>"}])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("method", ["sendMessage", "editMessageText"])
async def test_lost_response_of_telegram_is_reconciled(
    deployment: Deployment, method: str, after: bool, fault: dict[str, Any]
) -> None:
    # Each case has a group of its own: one is called less than 20 times a minute.
    deployment.conversations["own group"] = deployment.platforms.telegram_group()
    if method == "editMessageText":
        deployment.model.grow_slowly()
    deployment.platforms.telegram.fault(method, after=after, **fault)
    await deployment.answered("own group", deployment.ask("own group"), 40)
    assert "…" not in deployment.answers("own group")
    assert deployment.platforms.telegram.faults == []


@pytest.mark.parametrize("fault", [{"status": 502}, {"drop": True}])
@pytest.mark.parametrize("after", [False, True])
async def test_lost_response_of_discord_is_reconciled(
    deployment: Deployment, after: bool, fault: dict[str, Any]
) -> None:
    deployment.platforms.discord.fault("POST", "/channels/*/messages", after=after, **fault)
    await deployment.answered("channel", deployment.ask("channel"))


async def test_cut_gateway_is_resumed_without_a_gap(deployment: Deployment) -> None:
    identified = deployment.identifies()
    await deployment.platforms.discord.cut()
    answer = deployment.ask("channel")
    await deployment.answered("channel", answer, 30)
    assert deployment.identifies() == identified
    await deployment.service.wait_until_ready()


async def test_new_gateway_session_fetches_missed_messages(deployment: Deployment) -> None:
    # Discord names a bot's private chats nowhere: only one that was stored before can be read.
    await deployment.answered("discord_dm", deployment.ask("discord_dm"))
    identified = deployment.identifies()
    await deployment.platforms.discord.forget()
    asked = {kind: deployment.ask(kind) for kind in ("channel", "discord_thread", "discord_dm")}
    for kind, answer in asked.items():
        await deployment.answered(kind, answer, 40)
    assert deployment.identifies() == identified + 1
    await deployment.service.wait_until_ready()


async def test_closed_discord_client_is_replaced(deployment: Deployment) -> None:
    deployment.platforms.discord.gw_faults["accept"] = False
    await deployment.platforms.discord.cut(4010)  # discord.py does not reconnect after this code
    await deployment.service.wait_until_ready(status=503)
    await deployment.answered("telegram_dm", deployment.ask("telegram_dm"))
    missed = deployment.ask("channel")
    deployment.platforms.discord.gw_faults["accept"] = True
    await deployment.answered("channel", missed, 40)
    await deployment.service.wait_until_ready()


async def test_questions_are_answered_after_a_valkey_crash(deployment: Deployment) -> None:
    deployment.model.chunk_delays = (0.2,)
    asked = [(kind, deployment.ask(kind)) for kind in KINDS]
    valkey = find_valkey()
    assert valkey is not None
    valkey.kill()
    asked += [(kind, deployment.ask(kind)) for kind in KINDS]
    for kind, answer in asked:
        await deployment.answered(kind, answer, 30)
    await deployment.service.wait_until_ready()


# --- commands ------------------------------------------------------------------------------------


def newest(answers: list[str], beginning: str) -> bool:
    return bool(answers) and answers[-1].startswith(beginning)


async def test_only_an_admin_changes_the_preset_of_a_telegram_group(deployment: Deployment) -> None:
    conversation, wire = deployment.conversations["group"], deployment.platforms.telegram
    wire.chats[int(conversation.name.removeprefix("telegram:"))]["_admins"] = {TELEGRAM_PEOPLE[1]}
    conversation.say("/preset use nova", 0)
    await wait_until(lambda: newest(deployment.answers("group"), "⚠ Only an admin"))

    conversation.say("/preset use nova", 1)
    await wait_until(lambda: newest(deployment.answers("group"), "nova answers here"))
    await deployment.answered("group", deployment.ask("group"))
    assert deployment.model.requests[-1]["messages"][0]["content"] == "You are Nova."

    conversation.say(f"/preset@{wire.me['username']} reset", 1)
    await wait_until(lambda: newest(deployment.answers("group"), "Back to tester"))


async def test_only_an_admin_changes_the_preset_of_a_discord_channel(
    deployment: Deployment,
) -> None:
    platforms = deployment.platforms
    channel = platforms.guild.create_text_channel("presets")
    with pytest.raises(SetupError, match="default-member-permissions"):
        await platforms.people[0].slash(channel, "preset list")
    platforms.offer_to_everybody("preset")

    async def command(who: Any, words: str, **options: str) -> str:
        """Return the response to a slash command: what changes the channel is for everybody."""
        result = await who.slash(channel, words, **options)
        seen = await wait_until(
            lambda: result.response and result.response.content and result.response
        )
        assert seen.ephemeral == (words == "preset list" or who != platforms.admin)
        return str(seen.content)

    assert (await command(platforms.people[0], "preset use", name="nova")).startswith(
        "⚠ Only an admin"
    )
    assert (await command(platforms.admin, "preset use", name="nova")).startswith(
        "nova answers here"
    )
    assert "→ nova" in await command(platforms.people[0], "preset list")

    name = next(_names)
    platforms.discord.say(
        platforms.people[0], channel.id, f"<@{platforms.discord.b.bot_user.id}> T{name}:3"
    )
    await wait_until(
        lambda: (
            deployment.model.requests
            and deployment.model.requests[-1]["messages"][-1]["content"].endswith(f"T{name}:3")
        )
    )
    assert deployment.model.requests[-1]["messages"][0]["content"] == "You are Nova."


async def test_preset_names_are_completed(deployment: Deployment) -> None:
    channel = deployment.platforms.guild.create_text_channel("typing")
    known = set(deployment.platforms.discord.b.interactions)
    await deployment.platforms.admin.autocomplete(channel, "preset use", "name", "no")
    (asked,) = set(deployment.platforms.discord.b.interactions) - known
    interaction = deployment.platforms.discord.b.interactions[asked]
    choices = await wait_until(lambda: interaction.autocomplete_choices)
    assert choices == [{"name": "nova", "value": "nova"}]


async def test_admin_gets_the_prompt_as_a_file_on_telegram(deployment: Deployment) -> None:
    conversation, wire = deployment.conversations["topic"], deployment.platforms.telegram
    chat, _, topic = conversation.name.removeprefix("telegram:").partition(":")
    await deployment.answered("topic", deployment.ask("topic"))
    conversation.say("/context prompt", 0)
    await wait_until(lambda: newest(deployment.answers("topic"), "⚠ Only an admin"))
    wire.chats[int(chat)]["_admins"] = {TELEGRAM_PEOPLE[1]}
    wire.fault("sendDocument", drop=True, after=True)

    conversation.say("/context prompt", 1)
    await deployment.answered("topic", deployment.ask("topic"))

    (sent,) = [said for said in wire.msgs[int(chat)].values() if "document" in said]
    assert str(sent["message_thread_id"]) == topic
    assert sent["caption"].startswith("The exact prompt of receipt")
    text = wire.files[sent["document"]["file_id"]][1].decode()
    assert text.startswith("receipt: ")
    assert "You are a tester." in text


async def test_only_the_admin_sees_the_prompt_on_discord(deployment: Deployment) -> None:
    platforms, name = deployment.platforms, next(_names)
    channel = platforms.guild.create_text_channel("prompts")

    def public_texts() -> list[str]:
        """Return the messages that are not ephemeral."""
        shown = platforms.discord.messages(channel.id)
        return [one["content"] for one in shown if not one["flags"] & _EPHEMERAL]

    platforms.discord.say(
        platforms.people[0], channel.id, f"<@{platforms.discord.b.bot_user.id}> T{name}:3"
    )
    await wait_until(lambda: expected_answer(f"T{name}:3") in public_texts())
    before = public_texts()

    async def shown_to(who: Any) -> Any:
        result = await who.slash(channel, "context", show="prompt")
        seen = await wait_until(
            lambda: result.response and result.response.content and result.response
        )
        assert seen.ephemeral
        return seen

    is_refused = await shown_to(platforms.people[0])
    assert (is_refused.content[:15], is_refused.attachments) == ("⚠ Only an admin", [])
    (file,) = (await shown_to(platforms.admin)).attachments
    text = platforms.discord.b.cdn.get(file.url).decode()
    assert '"content": "You are a tester."' in text
    assert public_texts() == before


async def test_new_session_does_not_contain_the_old_one(deployment: Deployment) -> None:
    conversation = deployment.conversations["telegram_dm"]
    await deployment.answered("telegram_dm", deployment.ask("telegram_dm"))
    conversation.say("/new", 0)
    await wait_until(lambda: newest(deployment.answers("telegram_dm"), "A new conversation"))
    await deployment.answered("telegram_dm", deployment.ask("telegram_dm"))
    assert [one["role"] for one in deployment.model.requests[-1]["messages"]] == ["system", "user"]


async def test_help_lists_the_commands(deployment: Deployment) -> None:
    deployment.conversations["telegram_dm"].say("/help", 0)
    await wait_until(lambda: newest(deployment.answers("telegram_dm"), "I am"))
    assert "/preset" in deployment.answers("telegram_dm")[-1]


# --- kill and stop ------------------------------------------------------------------------------


async def test_answer_is_generated_again_after_a_kill(deployment: Deployment) -> None:
    platforms = deployment.platforms
    deployment.model.gate.clear()
    asked = {}
    # In new conversations: in a busy group an answer gets no live edits.
    for make in (
        platforms.channel,
        platforms.discord_dm,
        platforms.telegram_group,
        platforms.telegram_dm,
    ):
        conversation, name = make(), next(_names)
        conversation.ask(name, 40)
        asked[conversation] = expected_answer(f"T{name}:40")

    def has_started(conversation: Conversation, answer: str) -> bool:
        return any(
            text != "…" and answer.startswith(text) for text in platforms.bot_texts(conversation)
        )

    await wait_until(
        lambda: all(has_started(conversation, answer) for conversation, answer in asked.items())
    )
    await deployment.service.kill()
    deployment.model.gate.set()
    await deployment.service.start_and_wait()
    await wait_until(
        lambda: all(
            platforms.bot_texts(conversation) == [asked[conversation]] for conversation in asked
        )
    )


async def test_stop_finishes_answers_in_progress(deployment: Deployment) -> None:
    kinds = ("channel", "telegram_dm")
    deployment.model.gate.clear()
    halfway = deployment.model.halfway
    asked = {kind: deployment.ask(kind) for kind in kinds}
    await wait_until(lambda: deployment.model.halfway == halfway + len(kinds))

    stopping = asyncio.create_task(deployment.service.stop())
    await asyncio.sleep(1)
    deployment.model.gate.set()

    assert await stopping == 0
    assert {kind: deployment.answers(kind)[-1] for kind in kinds} == asked


async def test_every_question_of_this_module_was_answered_once(deployment: Deployment) -> None:
    assert await deployment.service.stop() == 0
    notices = (
        "⚠ Only an admin",
        "The exact prompt",
        "nova answers",
        "Changed by admin: nova answers",
        "Back to",
        "A new conv",
        "I am",
        "→ nova",
    )
    result = check_transcripts(
        post
        for post in deployment.platforms.messages()
        if not (post.by_bot and post.text.startswith(notices))
    )
    assert result.is_clean, str(result)
    assert deployment.platforms.telegram.lint == []
