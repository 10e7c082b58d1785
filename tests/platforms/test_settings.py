"""The settings of platforms: which bot a token belongs to."""

import base64

import pytest
from pydantic import SecretStr

from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.telegram.settings import TelegramSettings


@pytest.mark.parametrize(
    ("token", "account"), [(None, ""), ("123456789:AAH", "123456789"), ("nonsense", "")]
)
def test_telegram_account_is_the_number_of_the_token(token: str | None, account: str) -> None:
    secret = None if token is None else SecretStr(token)
    assert TelegramSettings(token=secret).bot_account == account


def test_discord_account_is_in_the_first_part_of_the_token() -> None:
    first = base64.b64encode(b"1131141114411144411").decode().rstrip("=")
    assert DiscordSettings(token=SecretStr(f"{first}.Gx.y")).bot_account == "1131141114411144411"


@pytest.mark.parametrize("token", [None, "wrong-token", "bm9uc2Vuc2U.a.b", "\u00e4.b", "/w==.b"])
def test_unreadable_discord_token_names_no_account(token: str | None) -> None:
    secret = None if token is None else SecretStr(token)
    assert DiscordSettings(token=secret).bot_account == ""
