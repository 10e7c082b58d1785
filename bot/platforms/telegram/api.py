"""Call Telegram's Bot API: every fault that comes out is a `PlatformError`, without the token."""

from typing import TypeVar

from aiogram import Bot
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import (
    AiogramError,
    TelegramAPIError,
    TelegramConflictError,
    TelegramEntityTooLarge,
    TelegramMigrateToChat,
    TelegramNetworkError,
    TelegramRetryAfter,
    TelegramServerError,
    TelegramUnauthorizedError,
)
from aiogram.methods import TelegramMethod
from aiogram.utils.token import TokenValidationError
from aiohttp import ClientConnectorError, ConnectionTimeoutError, InvalidURL

from bot.errors import (
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    SettingsError,
    Unreachable,
)
from bot.platforms.telegram.session import JsonSession
from bot.platforms.telegram.settings import TelegramSettings

T = TypeVar("T")

CALL_SECONDS = 10
_CONNECTIONS = 1000  # at once; fewer would queue calls where nobody sees them wait
_RETRY_UNTOLD_SECONDS = 5.0
# What `call` translates; a gateway's page in an odd encoding fails before aiogram can wrap it.
_FAULTS = (AiogramError, UnicodeDecodeError)


_NOT_THIS_ONE = (
    "message can't be edited",
    "no text in the message to edit",
    "no caption in the message to edit",
)


class NotModified(Refused):
    """The message has this text already."""


class NotEditable(Refused):
    """The message exists, but it is not one of ours, or of another kind."""


class AnotherListener(Unreachable):
    """Somebody else polls with our token, or a webhook is set."""


class Api:
    """One bot's connections, for the life of the process."""

    def __init__(self, settings: TelegramSettings) -> None:
        if settings.token is None:
            raise SettingsError("TROUPE_TELEGRAM__TOKEN is not set; @BotFather gives one")
        session = JsonSession(
            api=TelegramAPIServer.from_base(settings.api_base), limit=_CONNECTIONS
        )
        try:
            self._bot = Bot(settings.token.get_secret_value(), session=session)
        except TokenValidationError:
            raise SettingsError(
                "TROUPE_TELEGRAM__TOKEN is not of the form 123456:ABC...; copy it from @BotFather"
            ) from None

    async def call(self, method: TelegramMethod[T], seconds: int = CALL_SECONDS) -> T:
        """Call once, within `seconds` in all; a group that moved is followed.

        Raises:
            PlatformError: what `translate` made of the fault.
        """
        try:
            return await self._bot(method, request_timeout=seconds)
        except TelegramMigrateToChat as error:  # nothing was done yet
            method = method.model_copy(update={"chat_id": error.migrate_to_chat_id})
        except _FAULTS as error:
            raise translate(error) from None  # the cause's text has the token in an address
        try:
            return await self._bot(method, request_timeout=seconds)
        except _FAULTS as error:
            raise translate(error) from None

    async def close(self) -> None:
        await self._bot.session.close()


def translate(error: Exception) -> PlatformError:
    """Say in the house's words what went wrong; only Telegram's own description is quoted."""
    match error:
        case TelegramRetryAfter():
            return RateLimited(error.retry_after)
        case TelegramUnauthorizedError():
            return PlatformFatal(
                "Telegram does not accept the bot's token; "
                "set TROUPE_TELEGRAM__TOKEN to the one that @BotFather shows"
            )
        case TelegramEntityTooLarge():
            return Refused("Telegram refuses the request: it is too large")
        case TelegramNetworkError():
            return _translate_network(error.__cause__)
        case TelegramServerError():
            return OutcomeUnknown(f"Telegram has a fault of its own: {error.message}")
        case TelegramConflictError():
            return AnotherListener(
                "another process listens with this bot's token; stop it, or use another bot"
            )
        case TelegramAPIError():
            return _translate_refusal(error.message)
        case _:  # ClientDecodeError, UnicodeDecodeError
            return OutcomeUnknown("Telegram's answer cannot be read (a gateway's error page?)")


def _translate_network(cause: BaseException | None) -> PlatformError:
    match cause:
        case ClientConnectorError():
            return Unreachable(
                f"no connection to {cause.host}:{cause.port} ({type(cause).__name__})"
            )
        case ConnectionTimeoutError():
            return Unreachable("no connection to Telegram in time")
        case InvalidURL():
            return Unreachable("TROUPE_TELEGRAM__API_BASE is not an address")
        case TimeoutError():
            return OutcomeUnknown("Telegram did not answer in time")
        case _:
            return OutcomeUnknown(f"Telegram's answer was cut off ({type(cause).__name__})")


def _translate_refusal(description: str) -> PlatformError:
    said = description.lower()
    if "message is not modified" in said:
        return NotModified(description)
    if "message to edit not found" in said or "message to delete not found" in said:
        return MessageNotFound(description)
    if any(reason in said for reason in _NOT_THIS_ONE):
        return NotEditable(description)
    if said.startswith("too many requests"):
        return RateLimited(_RETRY_UNTOLD_SECONDS)
    return Refused(f"Telegram refuses: {description}")
