"""aiogram's session without its two largest costs: forms, and answer types made anew."""

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
    """Sends every call as JSON, but for those that upload a file.

    aiogram makes a type for each kind of answer, and pydantic keeps it only as long as somebody
    else does: without `_answers` it would be made again for every call, for milliseconds.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(json_loads=msgspec.json.decode, **given)
        self._answers: dict[Any, type[Response[Any]]] = {}

    @override
    async def make_request(
        self, bot: Bot, method: TelegramMethod[TelegramType], timeout: int | None = None
    ) -> TelegramType:
        if method.__api_method__ in _UPLOADS:  # seldom enough to do as aiogram does
            return await super().make_request(bot, method, timeout)
        if method.__returning__ not in self._answers:
            self._answers[method.__returning__] = Response[method.__returning__]  # type: ignore[name-defined]
        session = await self.create_session()
        try:
            async with session.post(
                self.api.api_url(bot.token, method.__api_method__),
                # what is unset stands for aiogram's defaults, of which we set none
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
