"""The limit of answers on the wires of both platforms, with the service as a process."""

import pytest

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

# An interval that no slow machine reaches: the fourth message is not answered.
THREE_AN_HOUR = {"TROUPE_LIMITS__ANSWERS_PER_PERSON": "3", "TROUPE_LIMITS__SECONDS": "3600"}
NOTICE = (
    "That is more than 3 messages in 3600 s. I have read yours, but will not answer it."
    " Please write again in "
)


@pytest.mark.parametrize("kind", ["telegram_group", "channel"])
async def test_person_over_the_limit_is_told_once_and_others_are_answered(
    service: ServiceProcess, platforms: LoopbackPlatforms, kind: str
) -> None:
    if not service.is_running:
        await service.start(**THREE_AN_HOUR)
        await service.wait_until_ready()
    where: Conversation = getattr(platforms, kind)()
    shown: list[str] = []
    for name in ("a1", "a2", "a3"):
        where.ask(name, words=1)
        shown.append(expected_answer(f"T{name}:1"))
        await wait_until(lambda: platforms.bot_texts(where) == shown)
    where.ask("a4", words=1)
    await wait_until(lambda: len(platforms.bot_texts(where)) == len(shown) + 1)
    where.ask("a5", words=1)
    where.ask("b1", words=1, who=1)
    shown.append(expected_answer("Tb1:1"))
    await wait_until(lambda: platforms.bot_texts(where)[-1] == shown[-1])
    texts = platforms.bot_texts(where)
    assert texts[3].startswith(NOTICE)
    assert [*texts[:3], *texts[4:]] == shown
