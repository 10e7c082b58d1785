"""What every implementation of shared values promises: found elsewhere soon, never in the way."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis.asyncio import Redis

from bot.chat.session import Claim, Session, Turn
from bot.ports import SharedValues
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextCodec
from bot.storage.redis_values import open_values
from bot.storage.windows import SessionWindow, SharedWindows, window_of
from tests.fakes import FakeClock, FakeSharedValues
from tests.samples import ALICE
from tests.valkey import run_redis, run_valkey

AT = datetime(2026, 11, 21, 12, 0, 0, 123457, tzinfo=UTC)
TIMEOUT_SECONDS = 10.0


@dataclass
class Peers:
    """Two processes' ends of the same values."""

    here: SharedValues
    there: SharedValues


@pytest.fixture(
    params=[
        pytest.param(run_valkey, marks=pytest.mark.service, id="valkey"),
        pytest.param(run_redis, marks=pytest.mark.service, id="redis"),
        pytest.param(None, id="fake"),
    ]
)
async def peers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Peers]:
    # A server on a busy machine is not taken for one that is away.
    monkeypatch.setattr("bot.storage.redis_values._FIND_SECONDS", 60)
    if request.param is None:
        values = FakeSharedValues()
        yield Peers(values, values)
        return
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(request.param(tmp_path))
        ends = [
            await stack.enter_async_context(open_values(url, "test:", SystemClock()))
            for _ in range(2)
        ]
        yield Peers(*ends)


async def find_soon(values: SharedValues, key: str, expected: bytes | None) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await values.find(key) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_value_is_found_elsewhere(peers: Peers) -> None:
    peers.here.keep("a", b"\x00one")
    await find_soon(peers.there, "a", b"\x00one")
    peers.there.keep("a", b"two")
    await find_soon(peers.here, "a", b"two")
    assert await peers.here.find("b") is None


async def test_dropped_value_is_gone_also_if_it_was_still_to_be_kept(peers: Peers) -> None:
    peers.here.keep("a", b"one")
    assert await peers.here.drop("a")
    peers.here.keep("b", b"marker")
    await find_soon(peers.there, "b", b"marker")
    assert await peers.there.find("a") is None


def window(*texts: str, is_whole: bool = True) -> SessionWindow:
    turns = tuple(Turn("user", text, ALICE, AT) for text in texts)
    return window_of(Session(3, turns), len(turns) + is_whole)


async def test_window_is_found_by_the_next_claim_only(peers: Peers) -> None:
    here, there = SharedWindows(peers.here, TextCodec()), SharedWindows(peers.there, TextCodec())
    kept = window("a", "b", is_whole=False)
    here.keep(Claim("telegram:5", 7, "here"), kept)
    await find_soon(peers.there, "window:telegram:5", await _any_value(peers.here))
    found = [await there.find(Claim("telegram:5", epoch, "there")) for epoch in (6, 7, 8, 9)]
    assert found == [None, None, kept, None]
    assert await there.find(Claim("telegram:6", 8, "there")) is None


async def test_value_that_is_no_window_is_not_found(peers: Peers) -> None:
    peers.here.keep("window:telegram:5", b"of another version")
    await find_soon(peers.there, "window:telegram:5", b"of another version")
    assert (
        await SharedWindows(peers.there, TextCodec()).find(Claim("telegram:5", 1, "there")) is None
    )


async def _any_value(values: SharedValues) -> bytes:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (found := await values.find("window:telegram:5")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def test_cancelled_reads_never_get_the_value_of_another_key(peers: Peers) -> None:
    """Cancel readers in the middle of a request: no answer reaches the reader after them."""
    for number in range(10):
        peers.here.keep(f"key:{number}", b"%d" % number)
    await find_soon(peers.there, "key:9", b"9")
    found: list[tuple[int, bytes | None]] = []

    async def read(number: int) -> None:
        found.append((number, await peers.there.find(f"key:{number}")))

    for round_ in range(200):
        readers = [asyncio.create_task(read(number)) for number in range(10)]
        for _ in range(round_ % 4):
            await asyncio.sleep(0)
        for reader in readers[::2]:
            reader.cancel()
        await asyncio.wait(readers)
    assert {number for number, _ in found} >= {1, 3, 5, 7, 9}
    assert [one for one in found if one[1] != b"%d" % one[0]] == []


@pytest.mark.service
async def test_installations_on_one_server_do_not_see_each_other(tmp_path: Path) -> None:
    async with (
        run_valkey(tmp_path) as url,
        open_values(url, "one:", SystemClock()) as one,
        open_values(url, "other:", SystemClock()) as other,
    ):
        one.keep("a", b"mine")
        await find_soon(one, "a", b"mine")
        assert await other.find("a") is None


@pytest.mark.service
async def test_frozen_server_is_asked_once_and_again_after_a_pause(tmp_path: Path) -> None:
    clock = FakeClock()
    async with run_valkey(tmp_path) as url, open_values(url, "test:", clock) as values:
        values.keep("a", b"one")
        await find_soon(values, "a", b"one")
        async with Redis.from_url(url) as client:
            server = int((await client.info("server"))["process_id"])
        os.kill(server, signal.SIGSTOP)
        try:
            assert await values.find("a") is None
        finally:
            os.kill(server, signal.SIGCONT)
        assert await values.find("a") is None  # nobody is asked
        await clock.advance(20)
        await find_soon(values, "a", b"one")


async def test_server_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / secrets.token_hex(4)}.sock"
    async with open_values(address, "test:", SystemClock()) as values:
        values.keep("a", b"one")
        assert await values.find("a") is None
        assert not await values.drop("a")
