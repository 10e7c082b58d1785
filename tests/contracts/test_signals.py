"""What every implementation of signals promises: here at once, elsewhere soon, never in the way."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from bot.errors import SettingsError, TroupeError
from bot.ports import Signals
from bot.storage.redis_signals import check_redis, open_signals
from tests.contracts.conftest import SignalPeers
from tests.valkey import run_valkey
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


async def test_signals_of_other_processes_can_be_told_apart(signals: SignalPeers) -> None:
    own, others = Recorder(), Recorder()
    signals.here.subscribe("conversations", own, others)
    signals.here.publish("conversations", ["a"])
    signals.there.publish("conversations", ["b"])
    received = {"own": ["a", "b"], "others": []}
    if signals.there is not signals.here:
        received = {"own": ["a"], "others": ["b"]}
    await wait_until(lambda: {"own": own.keys, "others": others.keys} == received)


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
        run_valkey(tmp_path) as url,
        open_signals(url, beat_seconds=0.1) as here,
        open_signals(url, beat_seconds=0.1) as there,
    ):
        await wait_until(lambda: here.reaches_others and there.reaches_others)
        received_here, received_there = Recorder(), Recorder()
        here.subscribe("conversations", received_here)
        there.subscribe("conversations", received_there)
        server = await _process_id(url)
        os.kill(server, signal.SIGSTOP)
        try:
            here.publish("conversations", ["during"])
            assert received_here.keys == ["during"]
            async with asyncio.timeout(2.5):  # of the 3 s that /readyz may take to name it
                for each in here, there:
                    assert "does not answer" in str(await each.find_problem())
            # also the one that has nothing to say learns that it must poll
            await wait_until(lambda: not here.reaches_others and not there.reaches_others)
        finally:
            os.kill(server, signal.SIGCONT)
        await _publish_until_received(here, received_there)
        await wait_until(lambda: here.reaches_others and there.reaches_others)


async def test_server_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    async with open_signals(f"unix://{tmp_path / 'nobody.sock'}") as signals:
        received = Recorder()
        signals.subscribe("conversations", received)
        signals.publish("conversations", ["a"])
        assert received.keys == ["a"]
        assert not signals.is_connected


async def test_wrong_password_is_logged_once_and_named_until_it_is_corrected(
    tmp_path: Path,
) -> None:
    async with (
        run_valkey(tmp_path) as url,
        Redis.from_url(url) as operator,
    ):
        await operator.config_set("requirepass", "other")
        wrong = url.replace("unix://", "unix://:hunter2@")
        with capture_logs() as logs:
            async with open_signals(wrong) as signals:
                server = operator.connection_pool.connection_kwargs["path"]
                assert await signals.find_problem() == (
                    f"TROUPE_REDIS_URL: Redis at {server} refuses the name or the password;"
                    " correct them in the address"
                )
                signals.publish("conversations", ["a"])  # the next failure, and the one after it
                await operator.config_set("requirepass", "hunter2")
                await wait_until(lambda: signals.reaches_others)
                assert await signals.find_problem() is None
    assert [one["event"] for one in logs] == ["signals_interrupted", "signals_resumed"]
    assert "hunter2" not in str(logs)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "redis://127.0.0.1:1/0",
            r"Redis at 127\.0\.0\.1:1 cannot be reached \(Connection refused\)",
        ),
        ("unix:///nowhere.sock", r"Redis at /nowhere\.sock cannot be reached \(No such file"),
    ],
)
async def test_check_of_a_server_that_is_away_names_it(url: str, problem: str) -> None:
    with pytest.raises(TroupeError, match=rf"^TROUPE_REDIS_URL: {problem}.*; start it"):
        await check_redis(url)


async def test_address_of_something_else_is_a_setting_error() -> None:
    with pytest.raises(SettingsError, match=r"write redis://:password@host:6379"):
        await check_redis("http://127.0.0.1:1")


async def _process_id(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("server"))["process_id"])


async def _publish_until_received(here: Signals, received: Recorder) -> None:
    def received_after() -> bool:
        here.publish("conversations", ["after"])
        return "after" in received.keys

    await wait_until(received_after)
