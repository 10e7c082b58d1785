"""Test Redis passwords from a file, which is read again at each connect."""

import asyncio
from pathlib import Path

import pytest
from redis.credentials import CredentialProvider

from bot.errors import SettingsError
from bot.storage.redis_client import open_client
from bot.telemetry.secret_masker import SecretMasker


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("first-password\n", encoding="utf-8")
    return file


def provider(address: str) -> CredentialProvider:
    found = open_client(address).connection_pool.connection_kwargs["credential_provider"]
    assert isinstance(found, CredentialProvider)
    return found


def test_replaced_password_is_used_for_the_next_connection(file: Path) -> None:
    password = provider(f"redis://troupe@host?password_file={file}")
    assert asyncio.run(password.get_credentials_async()) == ("troupe", "first-password")
    file.write_text("second-password\n", encoding="utf-8")
    assert asyncio.run(password.get_credentials_async()) == ("troupe", "second-password")
    assert "second" not in SecretMasker(()).mask("Redis says second-password")


@pytest.mark.parametrize("content", [None, "", "two words\n"])
def test_old_password_is_used_while_the_file_is_missing_or_invalid(
    file: Path, content: str | None
) -> None:
    password = provider(f"redis://host?password_file={file}")
    if content is None:
        file.unlink()
    else:
        file.write_text(content, encoding="utf-8")
    assert password.get_credentials() == ("first-password",)


@pytest.mark.parametrize(
    ("address", "place", "credentials"),
    [
        ("redis://host:6379/1?password_file={}", "host", ("first-password",)),
        ("rediss://us%40er@host/1?password_file={}", "host", ("us@er", "first-password")),
        (
            "unix:///run/redis.sock?password_file={}&username=user&db=1",
            "/run/redis.sock",
            ("user", "first-password"),
        ),
    ],
)
def test_password_file_and_user_are_removed_from_the_address(
    file: Path, address: str, place: str, credentials: tuple[str, ...]
) -> None:
    options = open_client(address.format(file)).connection_pool.connection_kwargs
    assert (options.get("host") or options["path"]) == place
    assert options["db"] == 1
    assert provider(address.format(file)).get_credentials() == credentials


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("redis://:pw@host/0?password_file=x", "a password and a password_file"),
        *((f"redis://:1{char}hid@host/0", "write @ as %40(?!.*hid)") for char in "/#?"),
        ("redis://host/0?password_file=nowhere", "the password in nowhere cannot be read"),
    ],
)
def test_invalid_redis_address_is_reported(address: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        open_client(address)
