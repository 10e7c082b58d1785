"""Call Telegram's Bot API; failures raise a `PlatformError` that never contains the token."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec
from aiogram import Bot, exceptions
from aiogram.client.session.base import BaseSession
from aiogram.methods import GetFile, Response, SendDocument, TelegramMethod
from aiogram.methods.base import TelegramType
from aiogram.types import InputFile
from aiogram.utils.token import TokenValidationError
from aiohttp import FormData
from pydantic import BaseModel
from typing_extensions import override

from bot import errors
from bot.platforms.telegram.model_building import build_response_type
from bot.platforms.telegram.settings import TelegramSettings
from bot.platforms.tokens import BotToken
from bot.ports import Clock
from bot.runtime.http_client import ConnectionFailed, HttpClient, InvalidAddress, download_file
from bot.texts.text import translatable

T = TypeVar("T")

CALL_TIMEOUT_SECONDS = 10
_DOWNLOAD_TIMEOUT_SECONDS = 20.0
_DEFAULT_RETRY_PAUSE_SECONDS = 5.0
# UnicodeDecodeError: aiogram does not wrap it if a proxy's page has another encoding.
_CALL_ERRORS = (exceptions.AiogramError, UnicodeDecodeError, ConnectionFailed, TimeoutError)
# The Bot API's own text for status 500; a "Bad Gateway" comes from a proxy.
_INTERNAL_ERROR_TEXT = "Internal Server Error"
_CONTENT_REFUSAL_REASONS = (
    *("can't parse", "entit", "text is empty", "text must be non-empty", "is too long"),
    *("_too_long", "button", "reply markup", "url"),
)
_CONNECT_SECONDS = 5.0
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # 100 updates, each with a long message and a long quote


class ReplyNotFound(errors.Refused):
    """The message to reply to no longer exists."""


class MemberNotFound(errors.Refused):
    """The person is not in the chat, or Telegram does not know them."""


class NotModified(errors.Refused):
    """The message already has this text."""


class NotEditable(errors.Refused):
    """The message was sent by someone else, or has no text that can be edited."""


class ChatMoved(errors.Refused):
    """The group became a supergroup, which has a new id."""

    def __init__(self, new_chat_id: int) -> None:
        super().__init__(f"the group is now the supergroup {new_chat_id}")
        self.new_chat_id = new_chat_id


class PollingConflict(errors.Unreachable):
    """Another process polls with this token, or a webhook is set."""


_REFUSALS_BY_REASON: Mapping[str, type[errors.Refused]] = {
    "message is not modified": NotModified,
    "message to be replied not found": ReplyNotFound,
    "reply message not found": ReplyNotFound,
    "reply_message_id": ReplyNotFound,
    "message to edit not found": errors.MessageNotFound,
    "message to delete not found": errors.MessageNotFound,
    "message to react not found": errors.MessageNotFound,
    "message_id_invalid": errors.MessageNotFound,
    "message can't be edited": NotEditable,
    "no text in the message to edit": NotEditable,
    "no caption in the message to edit": NotEditable,
    "participant_id_invalid": MemberNotFound,
    "user not found": MemberNotFound,
    "member not found": MemberNotFound,
}
"""Maps parts of Telegram's descriptions, in lowercase, to errors; the first match counts."""


class BotApi:
    """Calls methods of the Bot API, and switches to a new token when the token's file changes."""

    def __init__(self, settings: TelegramSettings, clock: Clock) -> None:
        if settings.token is None:
            raise errors.SettingsError(
                "TROUPE_TELEGRAM__TOKEN is not set; get a token from @BotFather"
            )
        self.token = BotToken(settings, clock)
        self._api_base = settings.api_base.rstrip("/")
        self._session = JsonSession(settings.api_base)
        self._bot = self._create_bot(settings.token.get_secret_value())

    @property
    def current_token(self) -> str:
        return self._bot.token

    async def call(self, method: TelegramMethod[T], seconds: int = CALL_TIMEOUT_SECONDS) -> T:
        """Call a method and return its result; raises `PlatformError`, such as `ChatMoved`."""
        return await self._call_with_newest_token(lambda bot: bot(method, request_timeout=seconds))

    async def send(
        self, name: str, fields: Mapping[str, object], seconds: int = CALL_TIMEOUT_SECONDS
    ) -> msgspec.Raw:
        """Call a method by name and return its result as JSON; raises the same errors as `call`."""
        send = self._session.send
        return await self._call_with_newest_token(lambda bot: send(bot, name, fields, seconds))

    async def download(self, file_id: str, max_bytes: int) -> bytes:
        """Return up to the first `max_bytes` of a file; raises `PlatformError`."""
        path = (await self.call(GetFile(file_id=file_id))).file_path
        if path is None:
            raise errors.Refused("Telegram returned no path for the file")
        url = f"{self._api_base}/file/bot{self._bot.token}/{quote(path)}"
        try:
            return await download_file(url, max_bytes, _DOWNLOAD_TIMEOUT_SECONDS)
        except (ConnectionFailed, TimeoutError) as error:
            # The cause's text may contain the URL with the token.
            raise translate_error(error) from None

    async def close(self) -> None:
        await self._session.close()

    async def _call_with_newest_token(self, send_request: Callable[[Bot], Awaitable[T]]) -> T:
        """Make a request; if its token is rejected but there is a newer one, repeat the request."""
        bot = self._newest_bot()
        try:
            try:
                return await send_request(bot)
            except exceptions.TelegramUnauthorizedError:
                new_bot = self._newest_bot(check_now=True)  # another call may have read the token
                if new_bot is bot:
                    raise
            return await send_request(new_bot)
        except _CALL_ERRORS as error:
            # The cause's text contains the URL with the token.
            raise translate_error(error) from None

    def _newest_bot(self, *, check_now: bool = False) -> Bot:
        token = self.token.read(check_now=check_now)
        if token != self._bot.token:
            self._bot = self._create_bot(token)
        return self._bot

    def _create_bot(self, token: str) -> Bot:
        try:
            return Bot(token, session=self._session)
        except TokenValidationError:
            raise errors.SettingsError(
                translatable(
                    "The bot's token (TROUPE_TELEGRAM__TOKEN) is not of the form 123456:ABC...;"
                    " copy it from @BotFather"
                )
            ) from None


def token_rejected_error() -> errors.TokenRejected:
    """Return the error for a rejected token; Telegram answers "Not Found" for a malformed one."""
    return errors.TokenRejected(
        translatable(
            "Telegram does not accept the bot's token (TROUPE_TELEGRAM__TOKEN); copy it again"
            " from @BotFather"
        )
    )


def translate_error(error: Exception) -> errors.PlatformError:
    """Convert a failed call's error to ours, quoting only Telegram's description."""
    match error:
        case exceptions.TelegramRetryAfter():
            return errors.RateLimited(error.retry_after)
        case exceptions.TelegramMigrateToChat():
            return ChatMoved(error.migrate_to_chat_id)
        case exceptions.TelegramUnauthorizedError():
            return token_rejected_error()
        case exceptions.TelegramEntityTooLarge():
            return errors.Refused("Telegram refused the request: it is too large")
        case ConnectionFailed():
            return _translate_connection_failure(error)
        case TimeoutError():
            return errors.OutcomeUnknown("Telegram did not answer in time")
        case exceptions.TelegramServerError():
            text = f"Telegram reported an internal error: {error.message}"
            return errors.OutcomeUnknown(text, request_ended=error.message == _INTERNAL_ERROR_TEXT)
        case exceptions.TelegramConflictError():
            return PollingConflict(
                "another process polls with this bot's token; stop it, or use another bot"
            )
        case exceptions.TelegramAPIError():
            return _translate_refusal(error.message)
        case _:  # ClientDecodeError, UnicodeDecodeError
            return errors.OutcomeUnknown(
                "Telegram's response is not valid JSON; perhaps a proxy sent an error page"
            )


def _translate_connection_failure(error: ConnectionFailed) -> errors.PlatformError:
    if isinstance(error, InvalidAddress):
        return errors.Unreachable("TROUPE_TELEGRAM__API_BASE is not a valid URL")
    if error.is_request_sent:
        return errors.OutcomeUnknown(f"Telegram's response was cut off: {error}")
    return errors.Unreachable(
        translatable("{name} cannot be reached: {reason}", name="Telegram", reason=error)
    )


def _translate_refusal(description: str) -> errors.PlatformError:
    lowercase_text = description.lower()
    text = translatable("Telegram refused: {refusal}", refusal=description)
    for reason, refusal in _REFUSALS_BY_REASON.items():
        if reason in lowercase_text:
            return refusal(text)
    if lowercase_text.startswith("too many requests"):
        return errors.RateLimited(_DEFAULT_RETRY_PAUSE_SECONDS)
    is_content_refused = any(reason in lowercase_text for reason in _CONTENT_REFUSAL_REASONS)
    return errors.ContentRefused(text) if is_content_refused else errors.Refused(text)


class JsonSession(BaseSession):
    """An aiogram session with our HTTP client; it sends calls as JSON, and uploads as forms."""

    def __init__(self, base_url: str) -> None:
        super().__init__(json_loads=msgspec.json.decode)
        self._client = HttpClient(base_url, {}, connect_seconds=_CONNECT_SECONDS, uses_proxy=False)

    @override
    async def make_request(
        self, bot: Bot, method: TelegramMethod[TelegramType], timeout: int | None = None
    ) -> TelegramType:
        """Call a method; raises `ConnectionFailed`, `TimeoutError` or an error of aiogram."""
        build_response_type(method.__returning__)
        name = method.__api_method__
        # Leave out unset fields: we do not use aiogram's defaults for them.
        body = (
            self._to_form_data(bot, method)
            if isinstance(method, SendDocument)
            else method.model_dump_json(exclude_unset=True, exclude_none=True).encode()
        )
        seconds = self.timeout if timeout is None else timeout
        status, content = await self._post_request(bot, name, body, seconds)
        answer = self.check_response(bot, method, status, content.decode())
        return cast("TelegramType", answer.result)

    @override
    def stream_content(self, *args: Any, **kwargs: Any) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError("use `BotApi.download`")

    async def send(
        self, bot: Bot, name: str, fields: Mapping[str, object], seconds: float
    ) -> msgspec.Raw:
        """Call a method by name and return its result as JSON, without aiogram's slow models."""
        parameters = {key: value for key, value in fields.items() if value is not None}
        body = msgspec.json.encode(parameters, enc_hook=_to_plain_json)
        status, content = await self._post_request(bot, name, body, seconds)
        try:
            answer = decode_leniently(_decode_api_response, content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = _ApiResponse()
        if not (answer.ok and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES):
            self.check_response(bot, _PlaceholderMethod(), status, content.decode())
        return answer.result

    @override
    def check_response(
        self, bot: Bot, method: TelegramMethod[TelegramType], status_code: int, content: str
    ) -> Response[TelegramType]:
        """Check a response, and treat errors without Telegram's description as unreadable."""
        try:
            return super().check_response(bot, method, status_code, content)
        except (exceptions.TelegramAPIError, TypeError) as error:  # TypeError: no description
            if isinstance(error, exceptions.TelegramAPIError) and error.message:
                raise
            raise exceptions.ClientDecodeError("no description", error, content) from error

    @override
    async def close(self) -> None:
        await self._client.close()

    def _to_form_data(self, bot: Bot, method: TelegramMethod[Any]) -> FormData:
        form = FormData(quote_fields=False)
        files: dict[str, InputFile] = {}
        for key, value in method.model_dump(exclude_unset=True, exclude_none=True).items():
            form.add_field(key, self.prepare_value(value, bot, files))
        for key, file in files.items():
            form.add_field(key, file.read(bot), filename=file.filename)
        return form

    async def _post_request(
        self, bot: Bot, name: str, body: bytes | FormData, seconds: float
    ) -> tuple[int, bytes]:
        deadline = asyncio.get_running_loop().time() + seconds
        path = f"/bot{bot.token}/{name}"
        content_type = "application/json" if isinstance(body, bytes) else None
        async with await self._client.request(
            "POST", path, body, deadline, content_type=content_type
        ) as response:
            return response.status, await response.read_all(deadline, _MAX_RESPONSE_BYTES)


class _ApiResponse(msgspec.Struct):
    ok: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")


class _PlaceholderMethod(TelegramMethod[Any]):
    """A placeholder, because aiogram's errors require a method."""

    __returning__ = Any
    __api_method__ = "untyped"


_decode_api_response = msgspec.json.Decoder(_ApiResponse).decode


def decode_leniently(decode: Callable[[bytes], T], content: bytes) -> T:
    """Decode JSON, replacing lone surrogates with `?` so that they do not fail a whole batch."""
    try:
        return decode(content)
    except RecursionError:
        raise msgspec.DecodeError("the JSON is nested too deeply") from None
    except msgspec.DecodeError:
        if not _ESCAPED_SURROGATE.search(content):
            raise
    try:
        decoded_json = json.loads(content)
    except (json.JSONDecodeError, RecursionError):
        return decode(content)
    return decode(json.dumps(decoded_json, ensure_ascii=False).encode(errors="replace"))


def decode_result(result: msgspec.Raw, result_type: type[T]) -> T:
    """Decode a result's JSON to a type; raises `OutcomeUnknown` if it does not match."""
    try:
        return msgspec.json.decode(result, type=result_type)
    except msgspec.DecodeError:
        raise errors.OutcomeUnknown("Telegram's result has an unexpected form") from None


def _to_plain_json(value: BaseModel) -> object:
    return value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
