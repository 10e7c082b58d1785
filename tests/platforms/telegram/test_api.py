"""Test that errors of the Bot API become our errors, and never contain the token."""

import json
from pathlib import Path

import pytest
from aiogram import exceptions
from aiogram.methods import GetMe
from pydantic import SecretStr

from bot import errors
from bot.platforms.telegram import api
from bot.platforms.telegram.settings import TelegramSettings
from bot.runtime.clock import SystemClock
from bot.runtime.http_client import ConnectionFailed, InvalidAddress

_REFUSALS = json.loads(Path(__file__).with_name("refusals.json").read_text("utf-8"))
_FAILURES = {
    exceptions.TelegramUnauthorizedError(GetMe(), "Unauthorized"): errors.TokenRejected,
    exceptions.TelegramForbiddenError(GetMe(), "Forbidden: bot was kicked"): errors.Refused,
    exceptions.TelegramNotFound(GetMe(), "Not Found"): errors.Refused,
    exceptions.TelegramEntityTooLarge(GetMe(), "Request Entity Too Large"): errors.Refused,
    exceptions.TelegramMigrateToChat(GetMe(), "upgraded", -1005): api.ChatMoved,
    exceptions.TelegramServerError(GetMe(), "Bad Gateway"): errors.OutcomeUnknown,
    exceptions.TelegramConflictError(GetMe(), "Conflict: terminated"): api.PollingConflict,
    exceptions.ClientDecodeError("Failed", ValueError(), "<html>"): errors.OutcomeUnknown,
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"): errors.OutcomeUnknown,
    ConnectionFailed("no connection to api.example:443", is_request_sent=False): errors.Unreachable,
    InvalidAddress(): errors.Unreachable,
    ConnectionFailed("reset"): errors.OutcomeUnknown,
    TimeoutError(): errors.OutcomeUnknown,
}


@pytest.mark.parametrize("meaning", _REFUSALS)
def test_refusals_are_distinguished_by_their_description(meaning: str) -> None:
    for words in _REFUSALS[meaning]:
        error = exceptions.TelegramAPIError(GetMe(), words)
        assert type(api.translate_error(error)).__name__ == meaning


@pytest.mark.parametrize("error", _FAILURES, ids=lambda error: type(error).__name__)
def test_failures_become_our_errors(error: Exception) -> None:
    assert type(api.translate_error(error)) is _FAILURES[error]


def test_internal_server_error_means_that_the_request_has_ended() -> None:
    over = api.translate_error(exceptions.TelegramServerError(GetMe(), "Internal Server Error"))
    assert isinstance(over, errors.OutcomeUnknown)
    assert over.request_ended
    unknown = [exceptions.TelegramServerError(GetMe(), "Bad Gateway"), ConnectionFailed("reset")]
    assert not any(getattr(api.translate_error(error), "request_ended", True) for error in unknown)


def test_flood_control_error_contains_retry_after() -> None:
    limited = api.translate_error(exceptions.TelegramRetryAfter(GetMe(), "Too Many Requests", 7))
    assert isinstance(limited, errors.RateLimited)
    assert limited.retry_after_seconds == 7


@pytest.mark.parametrize("token", [None, SecretStr("canary"), SecretStr("12 canary:x")])
async def test_missing_or_malformed_token_is_a_settings_error(token: SecretStr | None) -> None:
    with pytest.raises(errors.SettingsError, match="TROUPE_TELEGRAM__TOKEN") as caught:
        api.BotApi(TelegramSettings(token=token), SystemClock())
    assert "canary" not in str(caught.value)
