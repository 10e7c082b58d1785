"""Answers longer than one message, and one that may not be shown, on the wires."""

from itertools import count

import pytest

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in count(0xB000))
_WORDS = 1300


async def start(service: ServiceProcess) -> None:
    if not service.is_running:
        preset = preset_json("tester", busy="queue", long_answer="thread")
        (service.presets / "tester.json").write_text(preset)
        await service.start_and_wait()


def thread_of(platforms: LoopbackPlatforms, first_text: str) -> int | None:
    """Return the thread that was opened from the message that says this."""
    backend = platforms.discord.b
    ids = (
        one.id
        for posts in backend.messages.values()
        for one in posts.values()
        if one.content == first_text
    )
    return next((id_ for id_ in ids if id_ in backend.channels), None)


def texts(platforms: LoopbackPlatforms, channel: int | None) -> list[str]:
    """Return the messages of the service in a Discord channel, without those of the system."""
    posts = platforms.discord.messages(channel) if channel is not None else []
    people = {str(one.id) for one in platforms.people}
    return [
        one["content"]
        for one in posts
        if one["type"] in {0, 19} and one["author"]["id"] not in people
    ]


@pytest.mark.parametrize("fault", ["none", "opening lost", "message lost", "killed"])
async def test_long_answer_goes_on_in_a_thread_once(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer, fault: str
) -> None:
    await start(service)
    where, name = platforms.channel(), next(_names)
    channel = int(where.name.partition(":")[2])
    answer = expected_answer(f"T{name}:{_WORDS}")
    wire = platforms.discord
    if fault == "opening lost":
        wire.fault("POST", "/channels/*/threads", drop=True, after=True)
    elif fault in {"message lost", "killed"}:
        wire.fault("POST", "/webhooks/*", drop=True, after=True, times=2)
    where.ask(name, _WORDS)
    if fault == "killed":
        await wait_until(lambda: any(one["status"] == "dropped" for one in wire.log))
        await service.kill()
        wire.faults.clear()
        await service.start_and_wait()

    def shown() -> list[str]:
        in_channel = texts(platforms, channel)
        thread = thread_of(platforms, in_channel[0]) if in_channel else None
        return in_channel + texts(platforms, thread)

    await wait_until(lambda: " ".join(shown()) == answer)
    assert len(texts(platforms, channel)) == 1
    assert len(shown()) > 2


async def test_growing_answer_goes_on_in_its_thread(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    await start(service)
    where, name = platforms.channel(), next(_names)
    channel = int(where.name.partition(":")[2])
    answer = expected_answer(f"T{name}:{_WORDS}")

    def in_thread() -> list[str]:
        shown = texts(platforms, channel)
        return texts(platforms, thread_of(platforms, shown[0])) if shown else []

    model.gate.clear()
    try:
        where.ask(name, _WORDS)
        await wait_until(lambda: len(in_thread()) > 0)
        first = texts(platforms, channel)
        assert len(first) == 1
        assert answer.startswith(" ".join([*first, *in_thread()]))
    finally:
        model.gate.set()
    await wait_until(lambda: " ".join([*first, *in_thread()]) == answer)
    assert texts(platforms, channel) == first


async def test_thread_knows_its_answer_and_needs_no_mention(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    await start(service)
    where, long, short = platforms.channel(), next(_names), next(_names)
    channel = int(where.name.partition(":")[2])
    where.ask(long, _WORDS)
    await wait_until(lambda: len(texts(platforms, channel)) == 1)

    def thread() -> int | None:
        return thread_of(platforms, texts(platforms, channel)[0])

    await wait_until(lambda: len(texts(platforms, thread())) > 1)
    platforms.discord.say(platforms.people[1], thread(), f"and T{short}:3")
    answer = expected_answer(f"T{short}:3")
    await wait_until(lambda: answer in texts(platforms, thread()))
    assert f"T{long}:" in str(model.requests[-1]["messages"])


async def test_long_answer_is_sent_in_parts_on_telegram(
    service: ServiceProcess, platforms: LoopbackPlatforms
) -> None:
    await start(service)
    where, name = platforms.telegram_group(), next(_names)
    where.ask(name, _WORDS)
    answer = expected_answer(f"T{name}:{_WORDS}")
    await wait_until(lambda: " ".join(platforms.bot_texts(where)) == answer)
    assert len(platforms.bot_texts(where)) > 1


@pytest.mark.parametrize("kind", ["channel", "discord_thread"])
@pytest.mark.parametrize("blocks", ["the message", "an edit"])
async def test_answer_that_automod_blocks_is_replaced_by_a_word_to_the_asker(
    service: ServiceProcess,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    blocks: str,
    kind: str,
) -> None:
    await start(service)
    where, blocked, shown = getattr(platforms, kind)(), next(_names), next(_names)
    wire, channel = platforms.discord, where.name.removeprefix("discord:")
    if blocks == "an edit":
        wire.fault("PATCH", f"/channels/{channel}/messages/*", status=400, code=200000)
        model.gate.clear()
    else:
        wire.fault("POST", f"/channels/{channel}/messages", status=400, code=200000)
    where.ask(blocked, 30)
    await wait_until(lambda: platforms.bot_texts(where), 40)
    model.gate.set()
    await wait_until(lambda: "AutoMod" in str(platforms.bot_texts(where)), 40)
    [notice] = [one for one in wire.messages(int(channel)) if one["author"].get("bot")]
    assert notice["message_reference"]["channel_id"] == channel
    where.ask(shown, 3)
    await wait_until(lambda: expected_answer(f"T{shown}:3") in platforms.bot_texts(where), 40)
