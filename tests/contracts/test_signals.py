"""What every implementation of signals promises: here at once, elsewhere soon, never in the way."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from bot.ports import Signals
from bot.storage.coordination.embedded_valkey import run_embedded_valkey
from bot.storage.coordination.redis_signals import open_signals
from tests.contracts.conftest import SignalPeers
from tests.waiting import wait_until

pytestmark = pytest.mark.service


class Recorder:
    def __init__(self) -> None:
        self.keys: list[str] = []

    def __call__(self, keys: Sequence[str]) -> None:
        self.keys += keys


async def test_subscriber_here_is_called_at_once(signals: SignalPeers) -> None:
    received = Recorder()
    signals.here.subscribe("conversations", received)
    signals.here.publish("conversations", ["a", "b"])
    assert received.keys == ["a", "b"]


async def test_subscriber_elsewhere_is_called_once(signals: SignalPeers) -> None:
    received, marker = Recorder(), Recorder()
    signals.there.subscribe("conversations", received)
    signals.there.subscribe("marker", marker)
    signals.here.publish("conversations", ["a", "b"])
    signals.here.publish("marker", ["end"])
    await wait_until(lambda: marker.keys == ["end"])
    assert received.keys == ["a", "b"]


async def test_topics_are_separate(signals: SignalPeers) -> None:
    received, marker = Recorder(), Recorder()
    signals.there.subscribe("lanes", received)
    signals.there.subscribe("marker", marker)
    signals.here.publish("conversations", ["a"])
    signals.here.publish("marker", ["end"])
    await wait_until(lambda: marker.keys == ["end"])
    assert received.keys == []


async def test_thousands_of_signals_arrive_in_order(signals: SignalPeers) -> None:
    received = Recorder()
    signals.there.subscribe("conversations", received)
    for number in range(3000):
        signals.here.publish("conversations", [str(number)])
        if number % 100 == 0:
            await asyncio.sleep(0)
    await wait_until(lambda: received.keys[-1:] == ["2999"])
    assert received.keys == [str(number) for number in range(3000)]


async def test_frozen_server_holds_up_nobody_and_signals_return_after_it(tmp_path: Path) -> None:
    async with (
        run_embedded_valkey(tmp_path) as url,
        open_signals(url) as here,
        open_signals(url) as there,
    ):
        await wait_until(lambda: here.is_connected and there.is_connected)
        received_here, received_there = Recorder(), Recorder()
        here.subscribe("conversations", received_here)
        there.subscribe("conversations", received_there)
        server = await _process_id(url)
        os.kill(server, signal.SIGSTOP)
        try:
            here.publish("conversations", ["during"])
            assert received_here.keys == ["during"]
        finally:
            os.kill(server, signal.SIGCONT)
        await _publish_until_received(here, received_there)


async def test_server_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    async with open_signals(f"unix://{tmp_path / 'nobody.sock'}") as signals:
        received = Recorder()
        signals.subscribe("conversations", received)
        signals.publish("conversations", ["a"])
        assert received.keys == ["a"]
        assert not signals.is_connected


async def _process_id(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("server"))["process_id"])


async def _publish_until_received(here: Signals, received: Recorder) -> None:
    def received_after() -> bool:
        here.publish("conversations", ["after"])
        return "after" in received.keys

    await wait_until(received_after)
