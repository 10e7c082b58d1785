"""Test PostgreSQL passwords from a file, with a server that reports what it received."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bot.errors import SettingsError, StoreError
from bot.storage.database import open_database, parse_url
from bot.storage.postgres import PostgresPool

_ASK_PASSWORD = b"R\x00\x00\x00\x08\x00\x00\x00\x03"
_REFUSAL = b"SFATAL\x00C28P01\x00Mno\x00\x00"


@asynccontextmanager
async def asking_server(socket: Path | None, passwords: list[str]) -> AsyncIterator[int]:
    """Run a server that requests passwords and rejects them; yield its port."""

    async def message(reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await message(reader)
        writer.write(_ASK_PASSWORD)
        await reader.readexactly(1)
        passwords.append((await message(reader)).rstrip(b"\x00").decode())
        writer.write(b"E" + (len(_REFUSAL) + 4).to_bytes(4) + _REFUSAL)
        writer.close()

    if socket is not None:
        async with await asyncio.start_unix_server(serve, socket):
            yield 5432
        return
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connect(url: str) -> None:
    async with asyncio.timeout(60), open_database(url):
        pytest.fail("it opened")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
@pytest.mark.parametrize(
    ("lines", "password"),
    [
        ("127.0.0.1:{port}:db:me:secret", "secret"),
        (r"*:*:*:*:x\:y\\z", r"x:y\z"),
        ("# 127.0.0.1:{port}:db:me:no\n\n*:*:other:*:no\n*:*:*:me:first\n*:*:*:*:second", "first"),
        (r"*:*:d\b:*:with spaces at the end  ", "with spaces at the end  "),
        ("localhost:*:*:*:no\n127.0.0.1:1:*:*:no\n127.0.0.1:{port}:*:*:a:b", "a:b"),
    ],
)
async def test_password_is_read_from_the_first_matching_line(
    tmp_path: Path, lines: str, password: str, mode: int
) -> None:
    file, sent = tmp_path / "pass", list[str]()
    async with asking_server(None, sent) as port:
        file.write_text(lines.replace("{port}", str(port)))
        file.chmod(mode)
        with pytest.raises(StoreError, match="no"):
            await connect(
                f"postgresql+asyncpg://me@127.0.0.1:{port}/db?sslmode=disable&passfile={file}"
            )
    assert set(sent) == {password}


@pytest.mark.parametrize("host", ["localhost", "{folder}"])
async def test_unix_socket_matches_localhost_or_its_folder(tmp_path: Path, host: str) -> None:
    file, sent = tmp_path / "pass", list[str]()
    file.write_text(f"{host.format(folder=tmp_path)}:5432:db:me:secret\n")
    async with asking_server(tmp_path / ".s.PGSQL.5432", sent):
        with pytest.raises(StoreError, match="no"):
            await connect(f"postgresql+asyncpg://me@/db?host={tmp_path}&passfile={file}")
    assert set(sent) == {"secret"}


async def test_password_is_read_at_each_connect(tmp_path: Path) -> None:
    file = tmp_path / "pass"
    file.write_text("*:*:*:*:first")
    pool = PostgresPool(parse_url(f"postgresql+asyncpg://me@127.0.0.1/db?passfile={file}"))
    file.write_text("*:*:*:*:second")
    assert pool._connect_options["password"]() == "second"
    file.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        pool._connect_options["password"]()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (None, "the password file .*pass cannot be read: .*No such file"),
        ("*:*:other:*:x", "the password file .*pass has no line for 127.0.0.1:1:db:me"),
    ],
)
async def test_password_file_without_a_match_is_reported(
    tmp_path: Path, lines: str | None, told: str
) -> None:
    file = tmp_path / "pass"
    if lines is not None:
        file.write_text(lines)
    with pytest.raises(SettingsError, match=told):
        await connect(f"postgresql+asyncpg://me@127.0.0.1:1/db?passfile={file}")


@pytest.mark.parametrize("password", ["pa@hidden", "pa/hidden", "pa#hidden", "pa?hidden", "1?hid"])
async def test_error_about_an_unencoded_password_does_not_show_its_end(password: str) -> None:
    with pytest.raises(SettingsError, match="write @ as %40") as error:
        await connect(f"postgresql+asyncpg://me:{password}@127.0.0.1:1/db?sslmode=disable")
    assert "hid" not in str(error.value)
