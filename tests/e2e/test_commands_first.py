"""A command is answered although as many conversations as may are being answered."""

import pytest

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]


async def test_command_waits_for_no_place_among_the_answers(
    service: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    service.settings["TROUPE_LIMITS__CONVERSATIONS_AT_ONCE"] = "1"
    await service.start_and_wait()
    asked, waiting, told = (
        platforms.telegram_group(),
        platforms.channel(),
        platforms.telegram_dm(),
    )
    model.gate.clear()
    asked.ask("c0a1", 40)
    await wait_until(lambda: model.halfway >= 1)
    waiting.ask("c0a2")
    told.say("/help", 0)
    await wait_until(lambda: platforms.bot_texts(told))
    assert platforms.bot_texts(waiting) == []
    assert model.halfway == 1
    model.gate.set()
    await wait_until(lambda: platforms.bot_texts(waiting) == [expected_answer("Tc0a2:12")])
    assert platforms.bot_texts(asked) == [expected_answer("Tc0a1:40")]
