"""Commands and buttons are followed although as many conversations as may are being answered."""

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.shown_messages import DELETE, ShownMessages
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", autouse=True, loop_scope="module")
async def _answers_one_at_a_time(service: ServiceProcess) -> None:
    service.settings["TROUPE_LIMITS__CONVERSATIONS_AT_ONCE"] = "1"
    await service.start_and_wait()


async def test_command_waits_for_no_place_among_the_answers(
    platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    asked, waiting, told = (
        platforms.telegram_group(),
        platforms.channel(),
        platforms.telegram_dm(),
    )
    answered = model.halfway
    model.gate.clear()
    asked.ask("c0a1", 40)
    await wait_until(lambda: model.halfway > answered)
    waiting.ask("c0a2")
    told.say("/help", 0)
    await wait_until(lambda: platforms.bot_texts(told))
    assert platforms.bot_texts(waiting) == []
    assert model.halfway == answered + 1
    model.gate.set()
    await wait_until(lambda: platforms.bot_texts(waiting) == [expected_answer("Tc0a2:12")])
    assert platforms.bot_texts(asked) == [expected_answer("Tc0a1:40")]


async def test_button_that_asks_for_no_answer_waits_for_no_place_among_the_answers(
    platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    shown, asked = ShownMessages(platforms), platforms.telegram_group()
    pressed = [platforms.telegram_dm(), platforms.channel()]
    for number, where in enumerate(pressed):
        where.ask(f"c0b{number}")
        await wait_until(lambda: DELETE in (shown.buttons(where) or [[]])[-1])  # noqa: B023
    answered = model.halfway
    model.gate.clear()
    asked.ask("c0b9", 40)
    await wait_until(lambda: model.halfway > answered)
    for where in pressed:
        await shown.press(where, DELETE)
        await wait_until(lambda: not shown.of(where))  # noqa: B023
    assert platforms.bot_texts(asked) != [expected_answer("Tc0b9:40")]
    model.gate.set()
    await wait_until(lambda: platforms.bot_texts(asked) == [expected_answer("Tc0b9:40")])
