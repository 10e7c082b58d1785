"""Calls to Telegram's Bot API; every failure is a `PlatformError` without the token in it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import quote

import msgspec
from aiogram import Bot
from aiogram.exceptions import (
    AiogramError,
    TelegramAPIError,
    TelegramConflictError,
    TelegramEntityTooLarge,
    TelegramMigrateToChat,
    TelegramRetryAfter,
    TelegramServerError,
    TelegramUnauthorizedError,
)
from aiogram.methods import GetFile, TelegramMethod
from aiogram.utils.token import TokenValidationError

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
from bot.platforms.bot_token import BotToken
from bot.platforms.file_download import download_file
from bot.platforms.telegram.session import JsonSession
from bot.platforms.telegram.settings import TelegramSettings
from bot.ports import Clock
from bot.runtime.http.failures import ConnectionFailed, InvalidAddress

Response = TypeVar("Response")
T = TypeVar("T")

CALL_SECONDS = 10
_DOWNLOAD_SECONDS = 20.0
_DEFAULT_RETRY_SECONDS = 5.0
# What `call` translates. A proxy's error page in another encoding fails before aiogram wraps it.
_CALL_ERRORS = (AiogramError, UnicodeDecodeError, ConnectionFailed, TimeoutError)
# The Bot API's own words for status 500; a "Bad Gateway" comes from what stands before it.
_INTERNAL_ERROR = "Internal Server Error"
_NOT_EDITABLE_REASONS = (
    "message can't be edited",
    "no text in the message to edit",
    "no caption in the message to edit",
)
_REPLY_REASONS = ("message to be replied not found", "reply message not found", "reply_message_id")
_MISSING_REASONS = (
    "message to edit not found",
    "message to delete not found",
    "message_id_invalid",
)
_NO_MEMBER_REASONS = ("participant_id_invalid", "user not found", "member not found")
_CONTENT_REASONS = (
    "can't parse",
    "entit",
    "text is empty",
    "text must be non-empty",
    "is too long",
    "_too_long",
    "button",
    "reply markup",
    "url",
)


class ReplyNotFound(Refused):
    """The message to reply to does not exist any more."""


class NoSuchMember(Refused):
    """The person is not in the chat, or Telegram knows nobody of that id."""


class NotModified(Refused):
    """The message has this text already."""


class NotEditable(Refused):
    """The message exists, but it is not ours, or has no text or caption to edit."""


class ChatMoved(Refused):
    """The group became a supergroup, which has another id."""

    def __init__(self, chat: int) -> None:
        super().__init__(f"the group is now the supergroup {chat}")
        self.chat = chat


class PollingConflict(Unreachable):
    """Another process polls with this token, or a webhook is set."""


class BotApi:
    """The connections of one bot, for the life of the process."""

    def __init__(self, settings: TelegramSettings, clock: Clock) -> None:
        if settings.token is None:
            raise SettingsError("TROUPE_TELEGRAM__TOKEN is not set; get a token from @BotFather")
        self.token = BotToken(settings, clock)
        self._api_base = settings.api_base.rstrip("/")
        self._session = JsonSession(settings.api_base)
        self._bot = self._make_bot(settings.token.get_secret_value())

    @property
    def used_token(self) -> str:
        """The token of the last call."""
        return self._bot.token

    async def call(self, method: TelegramMethod[Response], seconds: int = CALL_SECONDS) -> Response:
        """Call a method.

        Raises:
            ChatMoved: the call had no effect; its chat has another id now.
            PlatformError: what `translate` made of the failure.
        """
        try:
            return await self._with_newest_token(lambda bot: bot(method, request_timeout=seconds))
        except _CALL_ERRORS as error:
            raise translate(error) from None  # the cause's text has the token in its URL

    async def send(
        self, name: str, fields: Mapping[str, object], seconds: int = CALL_SECONDS
    ) -> msgspec.Raw:
        """Call a method by its name, as `call` does; returns its result as JSON.

        Raises:
            ChatMoved: as with `call`.
            PlatformError: what `translate` made of the failure.
        """
        try:
            return await self._with_newest_token(
                lambda bot: self._session.send(bot, name, fields, seconds)
            )
        except _CALL_ERRORS as error:
            raise translate(error) from None  # the cause's text has the token in its URL

    async def download(self, file_id: str, max_bytes: int) -> bytes:
        """Return a file that somebody sent, or so many bytes of its beginning.

        Raises:
            PlatformError: Telegram does not give it; bots get files of up to 20 MB.
        """
        path = (await self.call(GetFile(file_id=file_id))).file_path
        if path is None:
            raise Refused("Telegram does not say where the file is")
        url = f"{self._api_base}/file/bot{self._bot.token}/{quote(path)}"
        try:
            return await download_file(url, max_bytes, _DOWNLOAD_SECONDS)
        except (ConnectionFailed, TimeoutError) as error:
            raise translate(error) from None  # the cause's text may have the token in its URL

    async def close(self) -> None:
        await self._session.close()

    async def _with_newest_token(self, request: Callable[[Bot], Awaitable[T]]) -> T:
        """Make a request, and once more if Telegram knows a token already that is read only now."""
        bot = self._newest_bot()
        try:
            return await request(bot)
        except TelegramUnauthorizedError:
            newer = self._newest_bot(at_once=True)  # another call may have read it meanwhile
            if newer is bot:
                raise
        return await request(newer)

    def _newest_bot(self, *, at_once: bool = False) -> Bot:
        token = self.token.read(at_once=at_once)
        if token != self._bot.token:
            self._bot = self._make_bot(token)
        return self._bot

    def _make_bot(self, token: str) -> Bot:
        try:
            return Bot(token, session=self._session)
        except TokenValidationError:
            raise SettingsError(
                "TROUPE_TELEGRAM__TOKEN is not of the form 123456:ABC...; copy it from @BotFather"
            ) from None


def token_refused(error: Refused) -> TokenRejected:
    """Return what a refusal of `getMe` means: a malformed token is answered by "Not Found"."""
    return TokenRejected(
        f"Telegram does not accept the bot's token ({error}); "
        "set TROUPE_TELEGRAM__TOKEN to the token that @BotFather shows"
    )


def translate(error: Exception) -> PlatformError:
    """Return what a failed call means; of its text only Telegram's description is kept."""
    match error:
        case TelegramRetryAfter():
            return RateLimited(error.retry_after)
        case TelegramMigrateToChat():
            return ChatMoved(error.migrate_to_chat_id)
        case TelegramUnauthorizedError():
            return TokenRejected(
                "Telegram does not accept the bot's token; "
                "set TROUPE_TELEGRAM__TOKEN to the one that @BotFather shows"
            )
        case TelegramEntityTooLarge():
            return Refused("Telegram refuses the request: it is too large")
        case ConnectionFailed():
            return _translate_lost(error)
        case TimeoutError():
            return OutcomeUnknown("Telegram did not answer in time")
        case TelegramServerError():
            message = f"Telegram has an internal error: {error.message}"
            return OutcomeUnknown(message, is_over=error.message == _INTERNAL_ERROR)
        case TelegramConflictError():
            return PollingConflict(
                "another process polls with this bot's token; stop it, or use another bot"
            )
        case TelegramAPIError():
            return _translate_refusal(error.message)
        case _:  # ClientDecodeError, UnicodeDecodeError
            return OutcomeUnknown("Telegram's response cannot be read (an error page of a proxy?)")


def _translate_lost(error: ConnectionFailed) -> PlatformError:
    if isinstance(error, InvalidAddress):
        return Unreachable("TROUPE_TELEGRAM__API_BASE is not a valid URL")
    if error.sent:
        return OutcomeUnknown(f"Telegram's response was cut off: {error}")
    return Unreachable(str(error))


def _translate_refusal(description: str) -> PlatformError:
    lowered = description.lower()
    if "message is not modified" in lowered:
        return NotModified(description)
    if any(reason in lowered for reason in _REPLY_REASONS):
        return ReplyNotFound(description)
    if any(reason in lowered for reason in _MISSING_REASONS):
        return MessageNotFound(description)
    if any(reason in lowered for reason in _NOT_EDITABLE_REASONS):
        return NotEditable(description)
    if any(reason in lowered for reason in _NO_MEMBER_REASONS):
        return NoSuchMember(f"Telegram refuses: {description}")
    if lowered.startswith("too many requests"):
        return RateLimited(_DEFAULT_RETRY_SECONDS)
    if any(reason in lowered for reason in _CONTENT_REASONS):
        return ContentRefused(f"Telegram refuses: {description}")
    return Refused(f"Telegram refuses: {description}")
