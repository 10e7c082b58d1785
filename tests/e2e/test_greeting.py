"""Greetings of a group and after /new, with the service as a process that is killed."""

import pytest

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
GREETING = "Well met, all."


async def test_group_is_greeted_once_also_after_a_restart(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    model.gate.set()
    (service.presets / "tester.json").write_text(
        preset_json("tester", greeting=GREETING, role_name="Nora")
    )
    await service.start_and_wait()
    group, later = platforms.telegram_group(), platforms.telegram_group()
    platforms.telegram.invite(1, int(group.name.removeprefix("telegram:")))
    await wait_until(lambda: platforms.bot_texts(group) == [GREETING], 30)
    await service.kill()
    platforms.telegram.invite(1, int(later.name.removeprefix("telegram:")))  # while it is down
    await service.start_and_wait()
    await wait_until(lambda: platforms.bot_texts(later) == [GREETING], 30)
    group.ask("a1")
    await wait_until(
        lambda: platforms.bot_texts(group) == [GREETING, expected_answer("Ta1:12")], 30
    )
    channel = platforms.channel()
    number = int(channel.name.removeprefix("discord:"))
    channel.say(f"{channel.mention}/new", 0)
    said = await wait_until(lambda: spoken_by_webhooks(platforms, number), 30)
    assert said == [("Nora", GREETING)]


def spoken_by_webhooks(platforms: LoopbackPlatforms, channel: int) -> list[tuple[str, str]]:
    """Return whom webhooks have let speak in a Discord channel, and what."""
    messages = platforms.discord.messages(channel)
    return [(one["author"]["username"], one["content"]) for one in messages if "webhook_id" in one]
