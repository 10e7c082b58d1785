"""Test bot tokens: the account they belong to, and token files that are replaced."""

import asyncio
import base64
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from bot.errors import SettingsError, TokenRejected
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.telegram.settings import TelegramSettings
from bot.platforms.tokens import BotToken
from bot.settings import read_settings
from bot.telemetry.secret_masker import SecretMasker
from tests.fakes import FakeClock

_OLD, _NEW = "123456:old-token", "123456:new-token"


def write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    write(file, f"{_OLD}\n")
    return file


@pytest.fixture
def token(file: Path, clock: FakeClock) -> BotToken[TelegramSettings]:
    return BotToken(TelegramSettings(token_file=file), clock)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_token_and_bot_id_are_read_from_the_file(file: Path) -> None:
    settings = TelegramSettings(token_file=file)
    assert settings.is_configured
    assert settings.token == SecretStr(_OLD)
    assert settings.bot_account == "123456"


@pytest.mark.parametrize(
    ("content", "token", "problem"),
    [
        (None, None, "cannot be read"),
        ("\n", None, "should contain exactly one token"),
        ("1:a\n1:b\n", None, "should contain exactly one token"),
        (_OLD, "1:other", "token and token_file are both set"),
    ],
)
@pytest.mark.parametrize("platform", ["DISCORD", "TELEGRAM"])
def test_error_for_a_file_without_exactly_one_token_names_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    content: str | None,
    token: str | None,
    problem: str,
) -> None:
    file = tmp_path / "token"
    if content is not None:
        write(file, content)
    monkeypatch.setenv(f"TROUPE_{platform}__TOKEN_FILE", str(file))
    if token is not None:
        monkeypatch.setenv(f"TROUPE_{platform}__TOKEN", token)
    with pytest.raises(SettingsError, match=problem):
        read_settings()


async def test_replaced_file_is_read_after_five_seconds_or_on_demand(
    file: Path, token: BotToken[TelegramSettings], clock: FakeClock
) -> None:
    write(file, f"{_NEW}-1")
    assert token.read() == _OLD
    await clock.advance(5)
    assert token.read() == f"{_NEW}-1"
    write(file, f"{_NEW}-12")
    assert token.read(check_now=True) == f"{_NEW}-12"
    assert token.settings.webhook_token != TelegramSettings(token=SecretStr(_OLD)).webhook_token
    assert "new-token" not in SecretMasker(()).mask(f"the token is {_NEW}-12")


@pytest.mark.parametrize(
    ("content", "events"),
    [("654321:another-bot", ["token_of_another_bot_ignored"]), ("", [])],
    ids=["another bot's", "just being replaced"],
)
async def test_file_without_a_token_of_this_bot_changes_nothing(
    file: Path, token: BotToken[TelegramSettings], clock: FakeClock, content: str, events: list[str]
) -> None:
    write(file, content)
    await clock.advance(5)
    with capture_logs() as logs:
        assert token.read() == _OLD
    assert [one["event"] for one in logs] == events


async def test_wait_after_a_rejection_ends_with_a_new_token_or_a_timeout(
    file: Path, token: BotToken[TelegramSettings], clock: FakeClock
) -> None:
    def wait() -> asyncio.Task[None]:
        return asyncio.create_task(token.wait_for_retry(_OLD, TokenRejected("no")))

    waiting = wait()
    await clock.advance(29)
    assert not waiting.done()
    await clock.advance(1)
    assert waiting.done()
    waiting = wait()
    write(file, f"{_NEW}-1")
    await clock.advance(5)
    assert waiting.done()


@pytest.mark.parametrize(
    ("token", "account"), [(None, ""), ("123456789:AAH", "123456789"), ("nonsense", "")]
)
def test_telegram_account_is_the_number_in_the_token(token: str | None, account: str) -> None:
    secret = None if token is None else SecretStr(token)
    assert TelegramSettings(token=secret).bot_account == account


def test_discord_account_is_in_the_first_part_of_the_token() -> None:
    first = base64.b64encode(b"1131141114411144411").decode().rstrip("=")
    assert DiscordSettings(token=SecretStr(f"{first}.Gx.y")).bot_account == "1131141114411144411"


@pytest.mark.parametrize("token", [None, "wrong-token", "bm9uc2Vuc2U.a.b", "\u00e4.b", "/w==.b"])
def test_malformed_discord_token_has_no_account(token: str | None) -> None:
    secret = None if token is None else SecretStr(token)
    assert DiscordSettings(token=secret).bot_account == ""
