"""Call a platform's HTTP API while a bot is set up."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bot.errors import OutcomeUnknown, Unreachable
from bot.runtime.http.client import HttpClient
from bot.runtime.http.failures import ConnectionFailed
from bot.texts.text import translatable

_MAX_RESPONSE_BYTES = 4 * 2**20


class JsonApi:
    """Calls a platform's API with JSON."""

    def __init__(self, name: str, base_url: str, headers: Mapping[str, str]) -> None:
        """Take the platform's name for messages, an address and headers for every call."""
        self._name = name
        self._client = HttpClient(
            base_url, {"Accept-Encoding": "identity", **headers}, connect_seconds=5
        )

    async def call(
        self, method: str, path: str, body: object = None, seconds: float = 10
    ) -> tuple[int, Any]:
        """Return the status and the JSON of a response; None for one that is not JSON.

        Raises:
            Unreachable: nothing was sent.
            OutcomeUnknown: no response came.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        data = None if body is None else json.dumps(body).encode()
        async with (
            self._translated(seconds),
            await self._client.request(method, path, data, deadline) as response,
        ):
            text = await response.read_all(deadline, _MAX_RESPONSE_BYTES)
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, None

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def _translated(self, seconds: float) -> AsyncIterator[None]:
        try:
            yield
        except ConnectionFailed as error:
            kind = OutcomeUnknown if error.sent else Unreachable
            raise kind(
                translatable("{name} cannot be reached: {reason}", name=self._name, reason=error)
            ) from None
        except TimeoutError:
            raise OutcomeUnknown(
                translatable(
                    "{name} did not answer within {seconds} s",
                    name=self._name,
                    seconds=f"{seconds:g}",
                )
            ) from None
