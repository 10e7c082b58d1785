"""Who shares a history in a channel, on the wires of both platforms."""

from itertools import count

import pytest

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in count(0xE000))


async def shows(platforms: LoopbackPlatforms, where: Conversation, *names: str) -> None:
    """Wait until the newest messages of the bot answer these questions, in any order."""
    expected = {expected_answer(f"T{name}:12") for name in names}
    await wait_until(lambda: set(platforms.bot_texts(where)[-len(names) :]) == expected)


async def set_scope(platforms: LoopbackPlatforms, where: Conversation, scope: str) -> None:
    where.say(f"{where.mention}/settings scope {scope}", 0)
    chosen = {"user": "each person", "replies": "each chain"}[scope]
    beginning = f"From the next message on, {chosen}"
    await wait_until(
        lambda: any(one.startswith(beginning) for one in platforms.bot_texts(where)), 40
    )


def tokens(model: ModelServer, name: str, others: list[str]) -> list[str]:
    """Return which of these names the model read when it was asked about one."""
    request = next(one for one in reversed(model.requests) if f"T{name}:" in str(one["messages"]))
    return [one for one in others if one in str(request["messages"])]


@pytest.mark.parametrize("kind", ["channel", "telegram_group"])
async def test_people_are_answered_side_by_side_and_replies_go_on(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, kind: str
) -> None:
    if not service.is_running:
        operator = platforms.people[0].id
        service.settings["TROUPE_ADMINS"] = f"telegram:1,discord:{operator}"
        await service.start_and_wait()
    where: Conversation = getattr(platforms, kind)()
    await set_scope(platforms, where, "user")
    first, second, third = (next(_names) for _ in range(3))
    model.gate.clear()
    try:
        before = model.halfway
        where.ask(first, who=0)
        where.ask(second, who=1)
        await wait_until(lambda: model.halfway == before + 2)
    finally:
        model.gate.set()
    await shows(platforms, where, first, second)
    where.ask(third, who=0)
    await shows(platforms, where, third)
    assert tokens(model, second, [first]) == []
    assert tokens(model, third, [first, second]) == [first]

    await set_scope(platforms, where, "replies")
    root, reply, alone = (next(_names) for _ in range(3))
    where.ask(root)
    await shows(platforms, where, root)
    where.reply(f"please T{reply}:12")
    await shows(platforms, where, reply)
    where.ask(alone)
    await shows(platforms, where, alone)
    assert tokens(model, reply, [first, root]) == [root]
    assert tokens(model, alone, [first, root, reply]) == []
