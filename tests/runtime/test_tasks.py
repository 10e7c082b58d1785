"""A cancelled task ends, also when a library swallows the cancellation."""

import asyncio

import pytest

import bot.runtime.tasks
from bot.runtime.tasks import cancel_and_wait


async def _ignore_cancellation(times: int) -> None:
    """Swallow so many cancellations, as `asyncio.wait_for` may."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


async def test_swallowed_cancellation_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bot.runtime.tasks, "_CANCEL_AGAIN_SECONDS", 0.01)
    stubborn, plain = (
        asyncio.create_task(_ignore_cancellation(2)),
        asyncio.create_task(_ignore_cancellation(0)),
    )
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancel_and_wait([stubborn, plain])
    assert stubborn.cancelled()
    assert plain.cancelled()


async def test_exception_of_a_cancelled_task_stays_in_it() -> None:
    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    task = asyncio.create_task(broken())
    await asyncio.sleep(0)
    await cancel_and_wait([task])
    assert isinstance(task.exception(), ValueError)


async def test_no_tasks_is_no_wait() -> None:
    tasks = asyncio.all_tasks()
    await cancel_and_wait([])
    assert asyncio.all_tasks() == tasks
