"""What set-up asks of a platform: whose token it is, and who sends a code to that bot.

An implementation uses no vendor's library, whose import alone would take seconds.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from bot.errors import OutcomeUnknown, Unreachable
from bot.frozen_dataclass import frozen_dataclass
from bot.runtime.http.client import HttpClient
from bot.runtime.http.failures import ConnectionFailed
from bot.texts.text import Text, translatable

_MAX_RESPONSE_BYTES = 4 * 2**20


@frozen_dataclass
class BotAccount:
    """The bot that a token belongs to."""

    name: str
    link: str
    """The address that opens a chat with it, or invites it to a server."""
    link_title: Text
    """What the address does, for people: "open a chat with it"."""
    notes: tuple[Text, ...] = ()
    """What it may not do at present, and where that is changed."""
    can_receive: bool = True
    """False: the platform ends its connections; `notes` say why."""


@frozen_dataclass
class CodeRequest:
    """How a person sends a code to the bot."""

    words: Text
    link: str | None = None
    """The address that does it at once."""


class AccountSetup(Protocol):
    """One bot account while it is set up; close it at the end."""

    where_from: Text
    """Where people get a token, as the end of a sentence."""

    async def inspect(self) -> BotAccount:
        """Return whose token it is.

        Raises:
            PlatformFatal: the token is malformed, or not accepted.
            PlatformError: the platform cannot be reached, or does not answer.
        """
        ...

    def request_code(self, account: BotAccount, code: str) -> CodeRequest:
        """Say how the first admin sends the code."""
        ...

    async def wait_for_code(self, code: str) -> str:
        """Wait until somebody sends the code to the bot; return the id of the person.

        No message is taken from the service, which may be started later.

        Raises:
            PlatformError: the bot cannot receive messages now; the text says why.
        """
        ...

    async def close(self) -> None: ...


class JsonApi:
    """Calls a platform's API with JSON over an HTTP client of our own."""

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
        async with self._translated(seconds):
            response = await self._client.request(method, path, data, deadline)
            try:
                text = await response.read_all(deadline, _MAX_RESPONSE_BYTES)
            finally:
                await response.close()
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
