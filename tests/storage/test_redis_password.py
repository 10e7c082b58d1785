"""The password of a Redis comes from a file, which is read again at each connect."""

import asyncio
from pathlib import Path

import pytest

from bot.errors import SettingsError
from bot.storage.redis_client import PasswordFile, open_client, take_password_file
from bot.telemetry.secret_masker import SecretMasker


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("first-password\n", encoding="utf-8")
    return file


def test_replaced_password_is_used_at_the_next_connect(file: Path) -> None:
    password = PasswordFile(file, "troupe")
    assert asyncio.run(password.get_credentials_async()) == ("troupe", "first-password")
    file.write_text("second-password\n", encoding="utf-8")
    assert asyncio.run(password.get_credentials_async()) == ("troupe", "second-password")
    assert "second" not in SecretMasker(()).mask("Redis says second-password")


@pytest.mark.parametrize("content", [None, "", "two words\n"])
def test_file_that_is_being_replaced_leaves_the_password_as_it_was(
    file: Path, content: str | None
) -> None:
    password = PasswordFile(file, None)
    if content is None:
        file.unlink()
    else:
        file.write_text(content, encoding="utf-8")
    assert password.get_credentials() == ("first-password",)


@pytest.mark.parametrize(
    ("address", "rest", "credentials"),
    [
        ("redis://host:6379/0?password_file={}", "redis://host:6379/0", ("first-password",)),
        (
            "rediss://us%40er@host/0?ssl_ca_certs=ca.pem&password_file={}",
            "rediss://host/0?ssl_ca_certs=ca.pem",
            ("us@er", "first-password"),
        ),
        (
            "unix:///run/redis.sock?password_file={}&username=user",
            "unix:///run/redis.sock",
            ("user", "first-password"),
        ),
    ],
)
def test_file_and_user_are_taken_out_of_the_address(
    file: Path, address: str, rest: str, credentials: tuple[str, ...]
) -> None:
    url, password = take_password_file(address.format(file))
    assert url == rest
    assert password is not None
    assert password.get_credentials() == credentials
    open_client(address.format(file))


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("redis://:pw@host/0?password_file=x", "a password and a password_file"),
        *((f"redis://:1{char}hid@host/0", "write @ as %40(?!.*hid)") for char in "/#?"),
        ("redis://host/0?password_file=nowhere", "the password in nowhere cannot be read"),
    ],
)
def test_wrong_address_is_named(address: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        open_client(address)
