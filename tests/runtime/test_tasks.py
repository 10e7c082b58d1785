"""A task that is cancelled ends, also when a library overlooks that it was."""

import asyncio

import pytest

import bot.runtime.tasks
from bot.runtime.tasks import cancelled


async def _deaf(times: int) -> None:
    """Overlook so many cancellations, as `asyncio.wait_for` may."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


async def test_a_cancellation_that_is_overlooked_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bot.runtime.tasks, "_INSIST_SECONDS", 0.01)
    deaf, hearing = asyncio.create_task(_deaf(2)), asyncio.create_task(_deaf(0))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancelled([deaf, hearing])
    assert deaf.cancelled()
    assert hearing.cancelled()


async def test_what_a_task_raises_at_its_end_stays_in_it() -> None:
    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    task = asyncio.create_task(broken())
    await asyncio.sleep(0)
    await cancelled([task])
    assert isinstance(task.exception(), ValueError)


async def test_nothing_to_cancel_is_nothing_to_wait_for() -> None:
    await cancelled([])
