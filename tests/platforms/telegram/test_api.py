"""Translation of the Bot API's errors, without the token in them."""

import pytest
from aiogram.exceptions import (
    ClientDecodeError,
    TelegramAPIError,
    TelegramBadRequest,
    TelegramConflictError,
    TelegramEntityTooLarge,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramNotFound,
    TelegramRetryAfter,
    TelegramServerError,
    TelegramUnauthorizedError,
)
from aiogram.methods import GetMe
from pydantic import SecretStr

from bot.errors import (
    ContentRefused,
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    RateLimited,
    Refused,
    SettingsError,
    TokenRejected,
    Unreachable,
)
from bot.platforms.telegram.api import (
    BotApi,
    ChatMoved,
    NotEditable,
    NotModified,
    PollingConflict,
    ReplyNotFound,
    translate,
)
from bot.platforms.telegram.settings import TelegramSettings
from bot.runtime.clock import SystemClock
from bot.runtime.http_client import ConnectionFailed, InvalidAddress


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (TelegramUnauthorizedError(GetMe(), "Unauthorized"), TokenRejected),
        (TelegramForbiddenError(GetMe(), "Forbidden: bot was blocked by the user"), Refused),
        (TelegramForbiddenError(GetMe(), "Forbidden: bot was kicked from the group chat"), Refused),
        (TelegramBadRequest(GetMe(), "Bad Request: CHAT_WRITE_FORBIDDEN"), Refused),
        (TelegramBadRequest(GetMe(), "Bad Request: not enough rights to send text"), Refused),
        (TelegramBadRequest(GetMe(), "Bad Request: TOPIC_CLOSED"), Refused),
        (TelegramNotFound(GetMe(), "Not Found"), Refused),
        (TelegramBadRequest(GetMe(), "Bad Request: chat not found"), Refused),
        (TelegramEntityTooLarge(GetMe(), "Request Entity Too Large"), Refused),
        (TelegramBadRequest(GetMe(), "Bad Request: message to edit not found"), MessageNotFound),
        (TelegramBadRequest(GetMe(), "Bad Request: message to delete not found"), MessageNotFound),
        (TelegramBadRequest(GetMe(), "Bad Request: message can't be edited"), NotEditable),
        (TelegramBadRequest(GetMe(), "Bad Request: message is not modified: s"), NotModified),
        (TelegramBadRequest(GetMe(), "Bad Request: MESSAGE_ID_INVALID"), MessageNotFound),
        (
            TelegramBadRequest(GetMe(), "Bad Request: message to be replied not found"),
            ReplyNotFound,
        ),
        (TelegramBadRequest(GetMe(), "Bad Request: REPLY_MESSAGE_ID_INVALID"), ReplyNotFound),
        (TelegramBadRequest(GetMe(), "Bad Request: MESSAGE_TOO_LONG"), ContentRefused),
        (TelegramBadRequest(GetMe(), "Bad Request: ENTITY_BOUNDS_INVALID"), ContentRefused),
        (TelegramMigrateToChat(GetMe(), "upgraded", -1005), ChatMoved),
        (TelegramServerError(GetMe(), "Bad Gateway"), OutcomeUnknown),
        (TelegramConflictError(GetMe(), "Conflict: terminated"), PollingConflict),
        (TelegramAPIError(GetMe(), "Too Many Requests"), RateLimited),
        (ClientDecodeError("Failed to decode", ValueError(), "<html>"), OutcomeUnknown),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), OutcomeUnknown),
        (ConnectionFailed("no connection to api.example:443", sent=False), Unreachable),
        (InvalidAddress(), Unreachable),
        (ConnectionFailed("reset"), OutcomeUnknown),
        (TimeoutError(), OutcomeUnknown),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_api_errors_are_translated(error: Exception, meaning: type[PlatformError]) -> None:
    assert type(translate(error)) is meaning


def test_only_an_internal_error_of_the_bot_api_ends_a_request() -> None:
    over = translate(TelegramServerError(GetMe(), "Internal Server Error"))
    assert isinstance(over, OutcomeUnknown)
    assert over.is_over
    for error in (TelegramServerError(GetMe(), "Bad Gateway"), ConnectionFailed("reset")):
        unknown = translate(error)
        assert isinstance(unknown, OutcomeUnknown)
        assert not unknown.is_over


def test_flood_control_error_has_retry_after() -> None:
    translated = translate(TelegramRetryAfter(GetMe(), "Too Many Requests", 7))
    assert isinstance(translated, RateLimited)
    assert translated.retry_after_seconds == 7


@pytest.mark.parametrize("token", [None, SecretStr("canary"), SecretStr("12 canary:x")])
async def test_missing_or_malformed_token_is_a_settings_error(token: SecretStr | None) -> None:
    with pytest.raises(SettingsError, match="TROUPE_TELEGRAM__TOKEN") as caught:
        BotApi(TelegramSettings(token=token), SystemClock())
    assert "canary" not in str(caught.value)
