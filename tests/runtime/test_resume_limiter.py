"""When many waiters are woken at once, only a few of them resume in one event loop pass."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

from bot.runtime.http_client import HttpClient
from bot.runtime.tasks import get_resume_limiter
from tests.runtime.http_server import byte_server
from tests.waiting import wait_until

IN_ONE_PASS = 16  # eight that were woken before the pass, and eight that were admitted in it
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Passes:
    def __init__(self) -> None:
        self.ended: list[int] = [0]
        self.order: list[int] = []
        self._next = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self.ended.append(0)
        self._next = asyncio.get_running_loop().call_soon(self._begin)

    async def count(self, number: int, work: Awaitable[object]) -> None:
        await work
        self.ended[-1] += 1
        self.order.append(number)

    def stop(self) -> None:
        self._next.cancel()


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    _, waiting = await asyncio.wait(tasks, timeout=60)
    assert not waiting
    for one in tasks:
        one.result()


@asynccontextmanager
async def count_passes(works: Sequence[Awaitable[object]]) -> AsyncIterator[Passes]:
    """Run tasks, and count how many end in each pass of the event loop."""
    passes = Passes()
    tasks = [asyncio.create_task(passes.count(*one)) for one in enumerate(works)]
    yield passes
    await ended(tasks)
    passes.stop()


def in_seconds(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_a_hundred_waiters_resume_in_order_a_few_per_pass() -> None:
    async with count_passes([get_resume_limiter().wait_to_resume() for _ in range(100)]) as passes:
        pass
    assert passes.order == list(range(100))
    assert max(passes.ended) <= IN_ONE_PASS


async def test_a_few_waiters_resume_at_once() -> None:
    task = asyncio.create_task(get_resume_limiter().wait_to_resume())
    await asyncio.sleep(0)
    assert task.done()


async def test_cancelled_waiter_does_not_delay_other_waiters() -> None:
    tasks = [asyncio.create_task(get_resume_limiter().wait_to_resume()) for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks[:50]:
        task.cancel()
    await ended(tasks[50:])


async def test_hundred_simultaneous_responses_are_read_a_few_per_pass() -> None:
    arrived = 0
    all_arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n")
        arrived += 1
        if arrived == len(works):
            all_arrived.set()
        await all_arrived.wait()
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, backlog=100) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient(address, {}, connect_seconds=60, uses_proxy=False)
        works = [client.request("GET", "/", None, in_seconds(60)) for _ in range(100)]
        async with count_passes(works) as passes:
            pass
        await client.close()
    assert len(passes.order) == len(works)
    assert max(passes.ended) <= IN_ONE_PASS


async def test_response_that_waits_for_its_turn_does_not_time_out() -> None:
    async with byte_server([0.05, OK]) as server:
        client = HttpClient(server.base_url, {}, connect_seconds=60, uses_proxy=False)
        asking = asyncio.create_task(client.request("GET", "/", None, in_seconds(0.2)))
        await wait_until(lambda: bool(server.requests))
        for _ in range(80):  # ten passes, each longer than the extra wait after a deadline
            get_resume_limiter().call_in_this_or_later_pass(lambda: time.sleep(0.015))
        assert (await asking).status == 200
        await client.close()
