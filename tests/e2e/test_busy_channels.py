"""Messages during an answer, with the service as a process, on the wires of both platforms."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

GROUPS = ["channel", "telegram_group"]
PRIVATE = ["discord_dm", "telegram_dm"]
_names = (f"{number:04x}" for number in count(0xB000))


async def start(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> Conversation:
    """Start the service with the default rules, and let it answer once."""
    model.answers_all = True
    if not service.is_running:
        file = service.presets / "tester.json"
        file.write_text(preset_json("tester", system="You are a tester."))
        await service.start_and_wait()
    conversation: Conversation = getattr(platforms, kind)()
    first = next(_names)
    conversation.ask(first)
    await shows(platforms, conversation, [first])
    return conversation


async def shows(
    platforms: LoopbackPlatforms, conversation: Conversation, *answers: Sequence[str]
) -> None:
    """Wait until the bot's messages are these answers, each to the questions of these names."""
    expected = [" ".join(expected_answer(f"T{name}:12") for name in one) for one in answers]
    await wait_until(lambda: platforms.bot_texts(conversation) == expected)


def asked_about(model: ModelServer, name: str) -> list[dict[str, Any]]:
    return [one for one in model.requests if name in str(one["messages"])]


async def ask_until_halfway(model: ModelServer, conversation: Conversation) -> str:
    """Ask a question; wait until the model has written half of its answer and stops there."""
    name, before = next(_names), model.halfway
    conversation.ask(name)
    await wait_until(lambda: model.halfway > before)
    return name


def ten_people(
    platforms: LoopbackPlatforms, conversation: Conversation
) -> list[Callable[[str], Any]]:
    """Return what ten people, each with an account of their own, write there with."""
    platform, _, chat = conversation.name.partition(":")
    if platform == "telegram":
        wire = platforms.telegram
        return [partial(wire.say, 200 + number, chat=int(chat)) for number in range(10)]
    on_discord, guild = platforms.discord, platforms.guild
    people = [on_discord.member(guild, f"person-{number}") for number in range(10)]
    return [partial(on_discord.say, person, int(chat)) for person in people]


@pytest.mark.parametrize("kind", GROUPS)
async def test_ten_people_at_once_get_one_answer_within_seconds(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> None:
    conversation = await start(service, platforms, model, kind)
    [first] = [one.split()[0][2:6] for one in platforms.bot_texts(conversation)]
    delays, model.chunk_delays = model.chunk_delays, (3 / model.chunk_count,)
    names = [next(_names) for _ in range(10)]
    began = time.monotonic()
    try:
        for name, say in zip(names, ten_people(platforms, conversation), strict=True):
            say(f"{conversation.mention}please T{name}:12")
        await shows(platforms, conversation, [first], names)
    finally:
        model.chunk_delays = delays
    print(f"{kind}: ten questions answered after {time.monotonic() - began:.1f} s")  # noqa: T201


@pytest.mark.parametrize("kind", GROUPS)
async def test_questions_during_an_answer_get_one_answer_after_it(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> None:
    conversation = await start(service, platforms, model, kind)
    [first] = [one.split()[0][2:6] for one in platforms.bot_texts(conversation)]
    model.gate.clear()
    try:
        name = await ask_until_halfway(model, conversation)
        await wait_until(lambda: f"RS{name}" in "".join(platforms.bot_texts(conversation)))
        names = [next(_names) for _ in range(4)]
        for number, one in enumerate(names):
            conversation.ask(one, who=number % 2)
    finally:
        model.gate.set()
    await shows(platforms, conversation, [first], [name], names)
    assert len(asked_about(model, f"T{names[0]}")) == 1


@pytest.mark.parametrize("kind", PRIVATE)
async def test_next_message_in_private_interrupts_and_both_are_answered(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> None:
    conversation = await start(service, platforms, model, kind)
    [first] = [one.split()[0][2:6] for one in platforms.bot_texts(conversation)]
    model.gate.clear()
    try:
        name, hung_up = await ask_until_halfway(model, conversation), model.hung_up
        await wait_until(lambda: f"RS{name}" in "".join(platforms.bot_texts(conversation)))
        following = next(_names)
        conversation.ask(following)
        await wait_until(lambda: model.hung_up > hung_up)
    finally:
        model.gate.set()
    await shows(platforms, conversation, [first], [name, following])


@pytest.mark.parametrize("kind", PRIVATE)
async def test_two_quick_messages_in_private_get_one_answer(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> None:
    conversation = await start(service, platforms, model, kind)
    [first] = [one.split()[0][2:6] for one in platforms.bot_texts(conversation)]
    delays, model.chunk_delays = model.chunk_delays, (0.5,)
    names = [next(_names), next(_names)]
    try:
        for name in names:
            conversation.ask(name)
        await shows(platforms, conversation, [first], names)
    finally:
        model.chunk_delays = delays


@pytest.mark.parametrize("kind", ["telegram_dm", "telegram_group"])
async def test_growing_answer_is_opened_with_its_first_words(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> None:
    conversation = await start(service, platforms, model, kind)
    [first] = [one.split()[0][2:6] for one in platforms.bot_texts(conversation)]
    model.gate.clear()
    try:
        name = await ask_until_halfway(model, conversation)
        await wait_until(lambda: f"RS{name}" in "".join(platforms.bot_texts(conversation)))
    finally:
        model.gate.set()
    await shows(platforms, conversation, [first], [name])
    chat = conversation.name.removeprefix("telegram:")
    sent = [
        str(call["params"]["text"])
        for call in platforms.telegram.log
        if call["method"].lower() == "sendmessage" and str(call["params"]["chat_id"]) == chat
    ]
    assert [one[:6] for one in sent] == [f"RS{first}", f"RS{name}"]
    assert len(sent[1]) < len(expected_answer(f"T{name}:12"))
