"""Addresses of Redis: what is wrong is named, and TLS checks the certificate."""

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bot.errors import SettingsError, TroupeError
from bot.ports import Signals
from bot.storage.redis_signals import check_redis, open_signals
from tests.valkey import run_valkey
from tests.waiting import wait_until


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


async def publish_until_received(here: Signals, there: Signals, word: str) -> None:
    """Publish a word until it arrives: what is sent during a failover may be lost."""
    received: list[str] = []
    there.subscribe(word, received.extend)

    def is_received() -> bool:
        here.publish(word, [word])
        return bool(received)

    await wait_until(is_received)


async def test_check_of_a_frozen_server_ends_soon() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        async with asyncio.timeout(3):
            with pytest.raises(TroupeError, match="does not answer within 1 s"):
                await check_redis(f"redis://127.0.0.1:{silent.getsockname()[1]}")


async def test_missing_file_of_an_authority_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    with pytest.raises(SettingsError, match=f"there is no file {file}; correct"):
        await check_redis(f"rediss://127.0.0.1:{free_port()}?ssl_ca_certs={file}")


@pytest.mark.parametrize("url", ["embedded", "redis+sentinel://127.0.0.1:26379/chats"])
async def test_unknown_kind_of_address_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"not a Redis address: .*; write redis://:password@"):
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
        run_valkey(tmp_path) as plain,
        tls_in_front(plain.removeprefix("unix://"), certificate, key) as port,
    ):
        with pytest.raises(TroupeError, match="has a certificate that is not trusted here"):
            await check_redis(f"rediss://127.0.0.1:{port}/0")
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        async with open_signals(url) as here, open_signals(url) as there:
            await publish_until_received(here, there, "word")
