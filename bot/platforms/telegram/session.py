"""aiogram's HTTP session with JSON bodies and cached response types."""

from typing import Any, cast

import msgspec
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.exceptions import TelegramNetworkError
from aiogram.methods import Response, SendDocument, TelegramMethod
from aiogram.methods.base import TelegramType
from aiohttp import ClientError, ClientTimeout
from typing_extensions import override

_JSON = {"Content-Type": "application/json"}
_UPLOADS = frozenset({SendDocument.__api_method__})


class JsonSession(AiohttpSession):
    """Sends every call as JSON, except those that upload a file.

    aiogram makes a generic type for each kind of response, and pydantic caches it weakly: without
    `_response_types` it would be built again for every call, which takes milliseconds.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(json_loads=msgspec.json.decode, **given)
        self._response_types: dict[Any, type[Response[Any]]] = {}

    @override
    async def make_request(
        self, bot: Bot, method: TelegramMethod[TelegramType], timeout: int | None = None
    ) -> TelegramType:
        if method.__api_method__ in _UPLOADS:  # rare
            return await super().make_request(bot, method, timeout)
        if method.__returning__ not in self._response_types:
            self._response_types[method.__returning__] = Response[method.__returning__]  # type: ignore[name-defined]
        session = await self.create_session()
        try:
            async with session.post(
                self.api.api_url(bot.token, method.__api_method__),
                # unset fields stand for aiogram's defaults, of which we set none
                data=method.model_dump_json(exclude_unset=True, exclude_none=True).encode(),
                headers=_JSON,
                timeout=ClientTimeout(self.timeout if timeout is None else timeout),
            ) as response:
                content = await response.text()
        except TimeoutError as error:
            raise TelegramNetworkError(method, "Request timeout error") from error
        except ClientError as error:
            raise TelegramNetworkError(method, f"{type(error).__name__}: {error}") from error
        answer = self.check_response(bot, method, response.status, content)
        return cast("TelegramType", answer.result)
