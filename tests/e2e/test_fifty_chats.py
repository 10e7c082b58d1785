"""In each of fifty chats: a message that cannot be parsed, a question that the model's server fails
at, and an answer that the platform never takes. All others are answered; `make soak` says how soon.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from typing_extensions import override

from tests.support.chats import LoopbackPlatforms
from tests.support.features import GROUPS
from tests.support.model_server import ModelServer
from tests.support.odd_messages import odd_messages, push_odd_message, refused_text
from tests.support.service_process import ServiceProcess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.service,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]
POISON = "poisonous"


class FailingModel(ModelServer):
    """Fails at every request whose newest message has a certain word."""

    @override
    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if POISON in str(asked["messages"][-1]["content"]):
            return web.json_response({"error": {"message": "boom"}}, status=500)
        return await super()._complete(request)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[FailingModel]:
    async with FailingModel() as failing:
        yield failing


async def test_others_are_answered_in_each_of_fifty_chats(
    service: ServiceProcess, platforms: LoopbackPlatforms
) -> None:
    del service.settings["TROUPE_DELIVERY__SETTLE_SECONDS"]  # as operators have it
    await service.start_and_wait()
    chats = [platforms.open(kind) for kind in GROUPS for _ in range(25)]
    began = time.monotonic()
    answered: dict[tuple[str, str], float] = {}
    with odd_messages(platforms), refused_text(platforms, "f0f0"):
        wanted = set()
        for where in chats:
            wanted.add((where.name, where.ask().answer))
            push_odd_message(where)
            where.tell(f"please {POISON}")
            where.ask("f0f0")
            wanted.add((where.name, where.ask().answer))
        async with asyncio.timeout(300):
            while len(answered) < len(wanted):
                for where in chats:
                    for shown in ((where.name, text) for text in where.texts()):
                        if shown in wanted:
                            answered.setdefault(shown, time.monotonic() - began)
                await asyncio.sleep(0.1)
    print(f"the last of {len(wanted)} others after {max(answered.values()):.1f} s")  # noqa: T201
