"""Calls are paced from the start, on the wire: a private chat gets about one a second."""

from itertools import count

import pytest

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in count(0xA500))
_COUNTED = {"sendmessage", "editmessagetext"}
_CLOCK_SECONDS = 0.5
"""How much closer calls may stand on the server's clock, because one was longer under way."""


async def test_private_chat_gets_ten_calls_in_ten_seconds(
    service: ServiceProcess, platforms: LoopbackPlatforms
) -> None:
    service.settings["TROUPE_DELIVERY__PACING"] = "strict"
    await service.start_and_wait()
    where = platforms.telegram_dm()
    names = [next(_names) for _ in range(14)]
    for name in names:
        where.ask(name)
    answers = [expected_answer(f"T{name}:12") for name in names]
    await wait_until(lambda: platforms.bot_texts(where) == answers)
    chat = where.name.partition(":")[2]
    calls = [
        one["t"]
        for one in platforms.telegram.log
        if one["method"].lower() in _COUNTED and str(one["params"].get("chat_id")) == chat
    ]
    assert len(calls) >= len(names)
    spans = [after - before for before, after in zip(calls, calls[10:], strict=False)]
    assert min(spans) >= 10 - _CLOCK_SECONDS
