"""/stop on the wires of both platforms: the model's request ends, and what was shown stays."""

from itertools import count

import pytest

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in count(0xF000))


async def ask_until_halfway(model: ModelServer, conversation: Conversation, name: str) -> None:
    before = model.halfway
    conversation.ask(name)
    await wait_until(lambda: model.halfway > before)


@pytest.mark.parametrize("platform", ["telegram_dm", "discord_dm"])
async def test_stop_ends_the_request_and_keeps_what_was_shown(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, platform: str
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    conversation: Conversation = getattr(platforms, platform)()
    name, hung_up = next(_names), model.hung_up
    whole = expected_answer(f"T{name}:12")
    model.gate.clear()
    try:
        await ask_until_halfway(model, conversation, name)
        await wait_until(lambda: whole[:5] in "".join(platforms.bot_texts(conversation)))
        conversation.say("/stop", 0)
        await wait_until(lambda: model.hung_up > hung_up)
        await wait_until(lambda: len(platforms.bot_texts(conversation)) == 2)
    finally:
        model.gate.set()
    shown = f"{whole[: len(whole) // 2]}".strip()
    stopped = "Stopped. /retry answers again."
    await wait_until(
        lambda: platforms.bot_texts(conversation) == [f"{shown}\n\n⚠ (stopped)", stopped], 40
    )
    conversation.say("/retry", 0)
    await wait_until(lambda: platforms.bot_texts(conversation)[2:] == [whole])
    conversation.say("/undo", 0)
    taken_back = f"Removed from the conversation: “please T{name}:12” and its answer."
    await wait_until(lambda: platforms.bot_texts(conversation)[3:] == [taken_back])


@pytest.mark.parametrize("platform", ["telegram_dm", "discord_dm"])
async def test_stop_sent_right_behind_its_question_stops_it(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, platform: str
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    conversation: Conversation = getattr(platforms, platform)()
    stopped, later = next(_names), next(_names)
    conversation.ask(stopped, 400)
    conversation.say("/stop", 0)
    conversation.ask(later)
    answer = expected_answer(f"T{later}:12")
    await wait_until(lambda: answer in platforms.bot_texts(conversation))
    shown = platforms.bot_texts(conversation)
    assert "Stopped. /retry answers again." in shown
    assert expected_answer(f"T{stopped}:400")[-20:] not in " ".join(shown)
