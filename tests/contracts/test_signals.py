"""Contract of signals: immediate in the same process, soon in others, never blocking."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from bot.errors import SettingsError, TroupeError
from bot.ports import Signals
from bot.storage import redis_client
from bot.storage.redis_signals import check_redis, open_signals
from tests.certificates import make_certificate
from tests.contracts.conftest import SignalPeers
from tests.valkey import frozen_valkey, run_valkey
from tests.waiting import BELOW_STALL_SECONDS, PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.service


async def test_subscriber_in_the_same_process_is_called_immediately(signals: SignalPeers) -> None:
    received = list[str]()
    signals.here.subscribe("conversations", received.extend)
    signals.here.publish("conversations", ["a", "b"])
    assert received == ["a", "b"]


async def test_subscriber_in_another_process_is_called_once_per_signal(
    signals: SignalPeers,
) -> None:
    received, marker = list[str](), list[str]()
    signals.there.subscribe("conversations", received.extend)
    signals.there.subscribe("marker", marker.extend)
    signals.here.publish("conversations", ["a", "b"])
    signals.here.publish("lanes", ["c"])
    signals.here.publish("marker", ["end"])
    await wait_until(lambda: marker == ["end"])
    assert received == ["a", "b"]


async def test_signals_of_other_processes_are_told_apart_from_own_signals(
    signals: SignalPeers,
) -> None:
    own, others = list[str](), list[str]()
    signals.here.subscribe("conversations", own.extend, others.extend)
    signals.here.publish("conversations", ["a"])
    signals.there.publish("conversations", ["b"])
    received = (["a", "b"], []) if signals.there is signals.here else (["a"], ["b"])
    await wait_until(lambda: (own, others) == received)


async def test_thousands_of_signals_arrive_in_order(signals: SignalPeers) -> None:
    received = list[str]()
    signals.there.subscribe("conversations", received.extend)
    for number in range(3000):
        signals.here.publish("conversations", [str(number)])
        if number % 100 == 0:
            await asyncio.sleep(0)
    await wait_until(lambda: received[-1:] == ["2999"])
    assert received == [str(number) for number in range(3000)]


async def test_frozen_server_does_not_block_callers_and_signals_resume(tmp_path: Path) -> None:
    async with (
        run_valkey(tmp_path) as url,
        open_signals(url, heartbeat_seconds=0.1) as here,
        open_signals(url, heartbeat_seconds=0.1) as there,
    ):
        await wait_until(lambda: here.is_cross_process and there.is_cross_process)
        received_here, received_there = list[str](), list[str]()
        here.subscribe("conversations", received_here.extend)
        there.subscribe("conversations", received_there.extend)
        with frozen_valkey():
            here.publish("conversations", ["during"])
            assert received_here == ["during"]
            async with asyncio.timeout(BELOW_STALL_SECONDS):
                for each in here, there:
                    assert "did not answer within 1 s" in str(await each.find_problem())
            # also the one that has nothing to say learns that it must poll
            await wait_until(lambda: not here.is_cross_process and not there.is_cross_process)
        await _publish_until_received(here, received_there)
        await wait_until(lambda: here.is_cross_process and there.is_cross_process)


async def test_missing_server_is_not_an_error(tmp_path: Path) -> None:
    async with open_signals(f"unix://{tmp_path / 'nobody.sock'}") as signals:
        received = list[str]()
        signals.subscribe("conversations", received.extend)
        signals.publish("conversations", ["a"])
        assert received == ["a"]
        assert not signals.is_connected


async def test_wrong_password_is_reported_once_with_its_cause(tmp_path: Path) -> None:
    async with (
        run_valkey(tmp_path) as url,
        Redis.from_url(url) as operator,
    ):
        await operator.config_set("requirepass", "other")
        wrong = url.replace("unix://", "unix://:hunter2@")
        with capture_logs() as logs:
            async with open_signals(wrong) as signals:
                server = operator.connection_pool.connection_kwargs["path"]
                assert str(await signals.find_problem()).startswith(
                    f"TROUPE_REDIS_URL: Redis at {server} rejected the user name or password;"
                    " correct them in the URL"
                )
                signals.publish("conversations", ["a"])  # the next failure, and the one after it
                await operator.config_set("requirepass", "hunter2")
                await wait_until(lambda: signals.is_cross_process)
                assert await signals.find_problem() is None
    assert [one["event"] for one in logs] == ["signals_interrupted", "signals_resumed"]
    assert "hunter2" not in str(logs)


async def test_check_of_a_frozen_server_ends_quickly() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        async with asyncio.timeout(BELOW_STALL_SECONDS):
            with pytest.raises(TroupeError, match="did not answer within 1 s"):
                await check_redis(f"redis://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "redis://127.0.0.1:1/0",
            r"1:1 cannot be reached \(Connection refused\).*; start",
        ),
        (
            "unix:///nowhere.sock",
            r"/nowhere\.sock cannot be reached \(No such file.*; start",
        ),
        ("rediss://127.0.0.1:1?ssl_ca_certs=/no.pem", "there is no file /no.pem; correct"),
        *(
            (wrong, r"not a Redis URL: .*; use redis://:password@host:6379")
            for wrong in (
                "embedded",
                "http://127.0.0.1:1",
                "redis+sentinel://127.0.0.1:26379/chats",
            )
        ),
    ],
)
async def test_check_explains_what_is_wrong_with_an_address(url: str, problem: str) -> None:
    with pytest.raises((TroupeError, SettingsError), match=rf"^TROUPE_REDIS_URL.*{problem}"):
        await check_redis(url)


@asynccontextmanager
async def tls_in_front(path: str, certificate: Path, key: Path) -> AsyncIterator[int]:
    """Run a server that forwards TLS connections to a unix socket; yield its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, forward = await asyncio.open_unix_connection(path)
        with contextlib.suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(upstream, writer))
                group.create_task(copy(reader, forward))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_signals_use_tls_only_with_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
    certificate, key = tmp_path / "redis.crt", tmp_path / "redis.key"
    for file, content in zip((certificate, key), make_certificate("redis"), strict=True):
        file.write_bytes(content)
    async with (
        run_valkey(tmp_path) as plain,
        tls_in_front(plain.removeprefix("unix://"), certificate, key) as port,
    ):
        with pytest.raises(TroupeError, match="has a certificate that is not trusted here"):
            await check_redis(f"rediss://127.0.0.1:{port}/0")
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        async with open_signals(url) as here, open_signals(url) as there:
            received = list[str]()
            there.subscribe("conversations", received.extend)
            await _publish_until_received(here, received)


async def _publish_until_received(here: Signals, received: list[str]) -> None:
    def received_after() -> bool:
        here.publish("conversations", ["after"])
        return "after" in received

    await wait_until(received_after)
