"""aiogram's session over the HTTP client that the whole service uses, with JSON bodies."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar, cast

import msgspec
from aiogram import Bot
from aiogram.client.session.base import BaseSession
from aiogram.exceptions import ClientDecodeError, TelegramAPIError
from aiogram.methods import Response, SendDocument, TelegramMethod
from aiogram.methods.base import TelegramType
from aiogram.types import InputFile
from aiohttp import FormData
from pydantic import BaseModel
from typing_extensions import override

from bot import __version__
from bot.platforms.file_download import download_file
from bot.platforms.telegram.model_building import response_type
from bot.runtime.http.client import HttpClient

_HEADERS = {"User-Agent": f"troupe/{__version__}", "Accept-Encoding": "identity"}
_UPLOADS = frozenset({SendDocument.__api_method__})
_CONNECT_SECONDS = 5.0
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
T = TypeVar("T")
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # 100 updates, each with a long message and its quotation


class JsonSession(BaseSession):
    """Sends every call as JSON, except those that upload a file.

    aiogram makes a generic type for each kind of response, and pydantic caches it weakly: without
    `_response_types` it would be built again for every call, which takes milliseconds.
    """

    def __init__(self, base_url: str) -> None:
        super().__init__(json_loads=msgspec.json.decode)
        self._client = HttpClient(
            base_url, _HEADERS, connect_seconds=_CONNECT_SECONDS, uses_proxy=False
        )
        self._response_types: dict[Any, type[Response[Any]]] = {}

    @override
    async def make_request(
        self, bot: Bot, method: TelegramMethod[TelegramType], timeout: int | None = None
    ) -> TelegramType:
        """Call a method; raises `ConnectionFailed` or `TimeoutError` if there is no response."""
        if method.__returning__ not in self._response_types:
            self._response_types[method.__returning__] = response_type(method.__returning__)
        name = method.__api_method__
        # unset fields stand for aiogram's defaults, of which we set none
        body = (
            self._to_form(bot, method)
            if name in _UPLOADS
            else method.model_dump_json(exclude_unset=True, exclude_none=True).encode()
        )
        seconds = self.timeout if timeout is None else timeout
        status, content = await self._post(bot, name, body, seconds)
        answer = self.check_response(bot, method, status, content.decode())
        return cast("TelegramType", answer.result)

    @override
    async def stream_content(
        self,
        url: str,
        headers: dict[str, Any] | None = None,
        timeout: int = 30,
        chunk_size: int = 65536,
        raise_for_status: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        yield await download_file(url, _MAX_RESPONSE_BYTES, timeout)

    async def send(
        self, bot: Bot, name: str, fields: Mapping[str, object], seconds: float
    ) -> msgspec.Raw:
        """Call a method without the types of its arguments and of its result.

        They cost more than the request, and the hot path needs one number of them.

        Args:
            bot: whose token is used.
            name: of the method.
            fields: values for JSON and aiogram's types; those that are None are not sent.
            seconds: how long the call may take.

        Returns:
            The result, as JSON.

        Raises:
            AiogramError: Telegram refuses, or its response cannot be read.
            UnicodeDecodeError: the same.
            ConnectionFailed: there is no response.
            TimeoutError: it did not come in time.
        """
        given = {key: value for key, value in fields.items() if value is not None}
        body = msgspec.json.encode(given, enc_hook=_to_plain)
        status, content = await self._post(bot, name, body, seconds)
        try:
            answer = decode_lenient(_decode_answer, content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = _Answer()
        if not (answer.ok and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES):
            self.check_response(bot, _UntypedMethod(), status, content.decode())
        return answer.result

    @override
    def check_response(
        self, bot: Bot, method: TelegramMethod[TelegramType], status_code: int, content: str
    ) -> Response[TelegramType]:
        """Take an error without a description for unreadable: it does not come from Telegram."""
        try:
            return super().check_response(bot, method, status_code, content)
        except (TelegramAPIError, TypeError) as error:  # aiogram searches the description
            if isinstance(error, TelegramAPIError) and error.message:
                raise
            raise ClientDecodeError("no description", error, content) from error

    @override
    async def close(self) -> None:
        await self._client.close()

    def _to_form(self, bot: Bot, method: TelegramMethod[Any]) -> FormData:
        form = FormData(quote_fields=False)
        files: dict[str, InputFile] = {}
        for key, value in method.model_dump(exclude_unset=True, exclude_none=True).items():
            form.add_field(key, self.prepare_value(value, bot, files))
        for key, file in files.items():
            form.add_field(key, file.read(bot), filename=file.filename)
        return form

    async def _post(
        self, bot: Bot, name: str, body: bytes | FormData, seconds: float
    ) -> tuple[int, bytes]:
        deadline = asyncio.get_running_loop().time() + seconds
        path = f"/bot{bot.token}/{name}"
        content_type = "application/json" if isinstance(body, bytes) else None
        async with await self._client.request(
            "POST", path, body, deadline, content_type=content_type
        ) as response:
            return response.status, await response.read_all(deadline, _MAX_RESPONSE_BYTES)


class _Answer(msgspec.Struct):
    ok: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")


class _UntypedMethod(TelegramMethod[Any]):
    """Stands for any method in aiogram's errors."""

    __returning__ = Any
    __api_method__ = "untyped"


_decode_answer = msgspec.json.Decoder(_Answer).decode


def decode_lenient(decode: Callable[[bytes], T], content: bytes) -> T:
    """Decode JSON; lone surrogates, which a text may have and UTF-8 has not, become `?`.

    One such text would else make everything unreadable that comes with it, again and again.

    Raises:
        msgspec.DecodeError: it is no JSON, or not what is to be decoded.
        UnicodeDecodeError: it is no UTF-8.
    """
    try:
        return decode(content)
    except RecursionError:
        raise msgspec.DecodeError("the JSON is nested too deeply") from None
    except msgspec.DecodeError:
        if not _SURROGATE.search(content):
            raise
    try:
        whole = json.loads(content)
    except (json.JSONDecodeError, RecursionError):
        return decode(content)
    return decode(json.dumps(whole, ensure_ascii=False).encode(errors="replace"))


def _to_plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    raise NotImplementedError(type(value).__name__)
