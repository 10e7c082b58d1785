"""In each of fifty chats: a message that cannot be parsed, a question that the model's server fails
at, and an answer that the platform never takes. All others are answered; `make soak` says how soon.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from typing_extensions import override

from tests.e2e.loopback_platforms import LoopbackPlatforms, running_platforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.test_delivery_faults import corrupt_odd_messages
from tests.e2e.transcript_checker import expected_answer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
POISON = "poisonous"
FIRST, REFUSED, LAST = "0001", "0002", "0003"


class FailingModel(ModelServer):
    """Fails at every request whose newest message has a certain word."""

    @override
    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if POISON in str(asked["messages"][-1]["content"]):
            return web.json_response({"error": {"message": "boom"}}, status=500)
        return await super()._complete(request)


@pytest_asyncio.fixture
async def platforms() -> AsyncIterator[LoopbackPlatforms]:
    async with running_platforms() as both:
        yield both


@pytest_asyncio.fixture
async def service(platforms: LoopbackPlatforms, tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    async with FailingModel() as model:
        installed = ServiceProcess(tmp_path, platforms, model)
        del installed.settings["TROUPE_DELIVERY__SETTLE_SECONDS"]  # as operators have it
        await installed.start_and_wait()
        yield installed
        await installed.kill()


@pytest.mark.usefixtures("service")
async def test_others_are_answered_in_each_of_fifty_chats(platforms: LoopbackPlatforms) -> None:
    telegram, wire = platforms.telegram, platforms.discord
    groups = [platforms.telegram_group() for _ in range(25)]
    channels = [platforms.channel() for _ in range(25)]
    refused = expected_answer(f"T{REFUSED}:12")
    telegram.fault("sendMessage", times=10**6, match={"text": refused}, error_code=500)
    take_fault = wire._take_fault

    def fault_of(method: str, path: str) -> Any:
        posted = wire.log[-1]["json"]
        if isinstance(posted, dict) and posted.get("content") == refused:
            wire.fault(method, path, status=500)
        return take_fault(method, path)

    wire._take_fault = fault_of
    corrupt_odd_messages(wire)
    began = time.monotonic()
    soon: dict[tuple[str, str], float] = {}
    for where in (*groups, *channels):
        where.ask(FIRST)
        if where in channels:
            where.say("odd", 1)
        else:
            telegram.push({"message": {"message_id": "odd", "chat": 7}})
        where.say(f"{where.mention}please {POISON}", 0)
        where.ask(REFUSED)
        where.ask(LAST)
    wanted = {
        (where.name, expected_answer(f"T{name}:12"))
        for where in (*groups, *channels)
        for name in (FIRST, LAST)
    }
    async with asyncio.timeout(300):
        while len(soon) < len(wanted):
            for where in (*groups, *channels):
                for text in platforms.bot_texts(where):
                    if (where.name, text) in wanted:
                        soon.setdefault((where.name, text), time.monotonic() - began)
            await asyncio.sleep(0.1)
    print(f"the last of {len(soon)} others after {max(soon.values()):.1f} s")  # noqa: T201
