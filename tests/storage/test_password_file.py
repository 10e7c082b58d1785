"""The password of a PostgreSQL comes from a file, which is read at each connect."""

from pathlib import Path

import pytest

from bot.errors import SettingsError
from bot.storage.database import open_database, parse_url
from bot.storage.postgres import PostgresPool, read_password

ADDRESS = "postgresql+asyncpg://me@127.0.0.1:1/db"


@pytest.mark.parametrize(
    ("lines", "address", "password"),
    [
        ("127.0.0.1:1:db:me:secret", ADDRESS, "secret"),
        (r"*:*:*:*:x\:y\\z", ADDRESS, r"x:y\z"),
        ("# 127.0.0.1:1:db:me:no\n\n*:*:other:*:no\n*:*:*:me:a\n*:*:*:*:b", ADDRESS, "a"),
        (r"*:*:d\b:*:with spaces at the end  ", ADDRESS, "with spaces at the end  "),
        ("localhost:*:*:*:no\n127.0.0.1:2:*:*:no\n127.0.0.1:1:*:*:a:b", ADDRESS, "a:b"),
        ("localhost:5432:db:me:s", "postgresql+asyncpg://me@/db?host=/run/postgresql", "s"),
        ("two:7:db:me:s", "postgresql+asyncpg://me@one:6,two:7/db", "s"),
    ],
)
def test_first_fitting_line_counts_whoever_may_read_the_file(
    tmp_path: Path, lines: str, address: str, password: str
) -> None:
    file = tmp_path / "pass"
    file.write_text(lines)
    file.chmod(0o444)
    assert read_password(file, parse_url(address)) == password


async def test_password_is_read_at_each_connect(tmp_path: Path) -> None:
    file = tmp_path / "pass"
    file.write_text("*:*:*:*:first")
    pool = PostgresPool(parse_url(f"{ADDRESS}?passfile={file}"))
    file.write_text("*:*:*:*:second")
    assert pool._options["password"]() == "second"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (None, "the password file .*pass cannot be read: .*No such file"),
        ("*:*:other:*:x", "no line of the password file .*pass is for 127.0.0.1:1:db:me"),
    ],
)
async def test_file_that_does_not_help_is_named(
    tmp_path: Path, lines: str | None, told: str
) -> None:
    file = tmp_path / "pass"
    if lines is not None:
        file.write_text(lines)
    with pytest.raises(SettingsError, match=told):
        async with open_database(f"{ADDRESS}?passfile={file}"):
            pytest.fail("it opened")


@pytest.mark.parametrize("password", ["pa@hidden", "pa/hidden", "pa#hidden", "pa?hidden", "1?hid"])
async def test_password_that_is_not_encoded_is_named_without_its_end(password: str) -> None:
    with pytest.raises(SettingsError, match="write @ as %40") as error:
        parse_url(f"postgresql+asyncpg://me:{password}@127.0.0.1:1/db?sslmode=disable")
    assert "hid" not in str(error.value)
