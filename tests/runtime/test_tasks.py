"""A cancelled task ends, even if a library swallows or delays the cancellation."""

import asyncio

import pytest

import bot.runtime.tasks
from bot.runtime.tasks import cancel_and_wait, wait_or_abandon
from tests.waiting import PATIENCE_SECONDS


async def _ignore_cancellation(times: int) -> None:
    """Swallow some cancellations, as `asyncio.wait_for` sometimes does."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


async def test_swallowed_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot.runtime.tasks, "_SECONDS_BETWEEN_CANCELLATIONS", 0.01)
    stubborn, plain = (
        asyncio.create_task(_ignore_cancellation(2)),
        asyncio.create_task(_ignore_cancellation(0)),
    )
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await cancel_and_wait([stubborn, plain])
    assert stubborn.cancelled()
    assert plain.cancelled()


async def test_exception_of_a_cancelled_task_is_not_propagated() -> None:
    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    task = asyncio.create_task(broken())
    await asyncio.sleep(0)
    await cancel_and_wait([task])
    assert isinstance(task.exception(), ValueError)


async def test_cancelled_work_is_abandoned_if_it_does_not_end() -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ended.set()
            raise OSError("nobody hears it")

    with pytest.raises(TimeoutError):
        await wait_or_abandon(0.01, slow())
    assert not ended.is_set()
    may_end.set()
    await ended.wait()


async def test_work_that_ends_in_time_returns_its_result_or_raises_its_error() -> None:
    async def broken() -> None:
        raise OSError("broken")

    assert await wait_or_abandon(60, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(OSError, match="broken"):
        await wait_or_abandon(60, broken())


async def test_work_is_cancelled_together_with_its_waiter() -> None:
    working = asyncio.ensure_future(asyncio.Event().wait())
    waiting = asyncio.create_task(wait_or_abandon(60, working))
    await asyncio.sleep(0)
    await cancel_and_wait([waiting])
    await asyncio.wait({working})
    assert working.cancelled()
