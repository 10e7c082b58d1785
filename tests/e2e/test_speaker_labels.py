"""Speaker labels in the prompt, by the rules of ChatHaruhi 3.0, on both platforms."""

import itertools
from typing import Any

import pytest

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
_names = (f"{number:04x}" for number in itertools.count(0xA000))


async def ask_as(
    platforms: LoopbackPlatforms, model: ModelServer, conversation: Conversation, who: int
) -> tuple[str, str, Any]:
    """Ask as one of the people; returns the question, the answer and the model's request."""
    question = f"please T{next(_names)}:3"
    conversation.say(f"{conversation.mention}{question}", who)
    answer = expected_answer(question)
    await wait_until(lambda: answer in platforms.bot_texts(conversation))
    return question, answer, model.requests[-1]


@pytest.mark.parametrize("kind", ["channel", "group"])
async def test_labels_start_with_the_second_speaker_and_cover_older_messages(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess, kind: str
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    conversation = {"channel": platforms.channel, "group": platforms.telegram_group}[kind]()
    first, second = {"channel": ("alice", "bob"), "group": ("U1", "U2")}[kind]

    one, one_answer, _ = await ask_as(platforms, model, conversation, 0)
    two, two_answer, alone = await ask_as(platforms, model, conversation, 0)
    three, _, group = await ask_as(platforms, model, conversation, 1)

    assert [(each["role"], each["content"]) for each in alone["messages"]] == [
        ("system", "You are a tester."),
        ("user", one),
        ("assistant", one_answer),
        ("user", two),
    ]
    assert [(each["role"], each["content"]) for each in group["messages"]] == [
        ("system", "You are a tester."),
        ("user", f"{first}:{one}"),
        ("assistant", f"tester:{one_answer}"),
        ("user", f"{first}:{two}"),
        ("assistant", f"tester:{two_answer}"),
        ("user", f"{second}:{three}"),
    ]
    assert "stop" not in alone
    assert group["stop"] == [f"\n{second}:", f"\n{first}:"]


async def test_two_characters_on_discord_speak_as_themselves(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    channel = platforms.guild.create_text_channel("characters")
    conversation = platforms._in_guild(channel.id)
    result = await platforms.admin.slash(channel, "preset add", name="nova")
    await wait_until(lambda: result.response and result.response.content)

    name = next(_names)
    conversation.say(f"{conversation.mention}nova and tester, T{name}:2", 0)

    answer = expected_answer(f"T{name}:2")

    def said() -> list[tuple[str, str]]:
        shown = platforms.discord.messages(channel.id)
        return [(one["author"]["username"], one["content"]) for one in shown if "webhook_id" in one]

    await wait_until(lambda: said() == [("nova", answer), ("tester", answer)])


async def test_two_characters_on_telegram_have_bold_speaker_lines(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    conversation = platforms.telegram_group()
    chat = int(conversation.name.removeprefix("telegram:"))
    conversation.say("hello", 0)  # the first message creates the group
    platforms.telegram.chats[chat]["_admins"] = {1}
    conversation.say("/preset add nova", 0)
    await wait_until(
        lambda: [
            one for one in platforms.bot_texts(conversation) if one.startswith("nova was added")
        ],
        30,
    )

    name = next(_names)
    conversation.say(f"{conversation.mention}nova and tester, T{name}:2", 0)

    answer = expected_answer(f"T{name}:2")
    expected = [f"nova\n{answer}", f"tester\n{answer}"]
    await wait_until(lambda: platforms.bot_texts(conversation)[1:] == expected)
    messages = list(platforms.telegram.msgs[chat].values())[-2:]
    assert [post["entities"] for post in messages] == [
        [{"type": "bold", "offset": 0, "length": size}] for size in (4, 6)
    ]
