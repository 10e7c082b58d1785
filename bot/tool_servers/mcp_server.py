"""Stay connected to one MCP server, and call its tools (docs/presets.md#mcp-servers).

One task owns the connection, because it has to be closed by whoever opened it. Answers never wait
for it: while the server is away its tools are not offered, and a call ends within its limit.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import anyio
import httpx2
import mcp_types
import structlog
from mcp import Client, MCPError
from mcp.client._transport import Transport
from mcp.client.streamable_http import streamable_http_client
from typing_extensions import override

from bot.chat.tool import ToolSpec
from bot.errors import ToolServerError
from bot.ports import Clock, ToolServer
from bot.prompting.text.confusables import strip_hidden_text
from bot.runtime.secret_file import read_one_secret
from bot.telemetry.secret_masker import mask_from_now_on
from bot.tool_servers.bounded_http import BoundedTransport
from bot.tool_servers.settings import McpServerSettings
from bot.tool_servers.stdio import stdio_transport
from bot.tool_servers.tool_names import offered_name

MAX_TOOLS = 24
"""How many tools of a server are offered."""

_MAX_PAGES = 8
_MAX_DESCRIPTION_CHARS = 600
_MAX_SCHEMA_CHARS = 3000
_CONNECT_SECONDS = 15.0
_REFRESH_SECONDS = 60.0
_MIN_DELAY_SECONDS = 1.0
_MAX_DELAY_SECONDS = 60.0
_FAILURES = (
    MCPError,
    OSError,
    TimeoutError,
    ValueError,
    RuntimeError,
    httpx2.HTTPError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    ExceptionGroup,
)
_log = structlog.get_logger(__name__)


class McpServer(ToolServer):
    """One server; `run` connects, and connects again with growing delays when it fails."""

    def __init__(
        self, name: str, settings: McpServerSettings, log_file: Path, clock: Clock
    ) -> None:
        self._name = name
        self._settings = settings
        self._token = settings.token.get_secret_value() if settings.token else None
        self._log_file = log_file
        self._clock = clock
        self._client: Client | None = None
        self._tools: Mapping[str, mcp_types.Tool] = {}
        self._specs: tuple[ToolSpec, ...] = ()
        self._failed = asyncio.Event()
        self._failures = 0
        self.left_out: Sequence[str] = ()
        """The names of tools that are not offered; known after `check`."""

    @property
    @override
    def specs(self) -> Sequence[ToolSpec]:
        return self._specs if self._client is not None else ()

    @property
    @override
    def call_seconds(self) -> float:
        return self._settings.seconds

    @override
    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        client, tool = self._client, self._tools.get(name)
        if client is None or tool is None:
            raise ToolServerError(f"the MCP server {self._name} is not connected")
        try:
            async with asyncio.timeout(self._settings.seconds):
                result = await client.call_tool(tool.name, dict(arguments))
        except MCPError as error:
            if error.code in {mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND}:
                return f"error: {error.message}"  # the model may mend its call
            raise self._lose_connection(error) from error
        except _FAILURES as error:
            raise self._lose_connection(error) from error
        self._failures = 0
        text = "\n".join(map(_text_of, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        return f"error: {text}" if result.is_error else text

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                async with self._connection():
                    _log.info("mcp_server_connected", server=self._name, tools=len(self._specs))
                    await self._refresh_until_failed()
            except _FAILURES as error:
                self._failures += 1
                _log.warning("mcp_server_lost", server=self._name, reason=describe(error))
            delay = _MIN_DELAY_SECONDS * 2 ** min(self._failures, 10)
            await self._clock.sleep(min(_MAX_DELAY_SECONDS, delay))

    async def check(self) -> Sequence[ToolSpec]:
        """Connect once and return what would be offered; raises `ToolServerError`."""
        try:
            async with self._connection():
                return self._specs
        except _FAILURES as error:
            raise ToolServerError(describe(error)) from error

    def _lose_connection(self, error: BaseException) -> ToolServerError:
        """Offer nothing until it was connected anew: the next call would fail as well."""
        self._client = None
        self._failures += 1
        self._failed.set()
        return ToolServerError(f"the MCP server {self._name}: {describe(error)}")

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        self._failed.clear()
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(_CONNECT_SECONDS):
                client = await stack.enter_async_context(self._connect())
                await self._list_tools(client)
            self._client = client
            try:
                yield
            finally:
                self._client = None

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[Client]:
        given = self._settings
        async with contextlib.AsyncExitStack() as stack:
            if given.command is not None:
                environment = {
                    name: value.get_secret_value() for name, value in given.environment.items()
                }
                transport: Transport = stdio_transport(given.command, environment, self._log_file)
            else:
                token = await asyncio.to_thread(self._read_token)
                http = httpx2.AsyncClient(
                    headers={"Authorization": f"Bearer {token}"} if token else None,
                    timeout=httpx2.Timeout(given.seconds, read=_REFRESH_SECONDS * 2),
                    transport=BoundedTransport(),
                )
                await stack.enter_async_context(http)
                transport = streamable_http_client(given.url or "", http_client=http)
            yield await stack.enter_async_context(Client(transport, cache=None))

    def _read_token(self) -> str | None:
        """Return the token; what it was before while its file is being replaced."""
        given = self._settings
        if given.token_file is not None:
            try:
                token = read_one_secret(given.token_file, "token")
            except ValueError as error:
                _log.warning("secret_file_not_read", server=self._name, reason=str(error))
            else:
                mask_from_now_on([token])
                self._token = token
        return self._token

    async def _refresh_until_failed(self) -> None:
        """List the tools anew every minute, which shows as well whether the server is there."""
        while not self._failed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await self._failed.wait()
                    return
            client = self._client
            if client is not None:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await self._list_tools(client)
                self._failures = 0

    async def _list_tools(self, client: Client) -> None:
        listed: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        tools: dict[str, mcp_types.Tool] = {}
        for tool in listed:
            name = offered_name(self._name, tool.name)
            fits = len(json.dumps(tool.input_schema)) <= _MAX_SCHEMA_CHARS
            if self._may_offer(tool) and fits and name is not None and len(tools) < MAX_TOOLS:
                tools.setdefault(name, tool)
        self._tools = tools
        self._specs = tuple(
            ToolSpec(name, _description(tool), tool.input_schema) for name, tool in tools.items()
        )
        offered = {tool.name for tool in tools.values()}
        self.left_out = [tool.name for tool in listed if tool.name not in offered]

    def _may_offer(self, tool: mcp_types.Tool) -> bool:
        if self._settings.tools:
            return tool.name in self._settings.tools
        return tool.annotations is not None and tool.annotations.read_only_hint is True


def describe(error: BaseException) -> str:
    """Return a line about a failure; of a group, about its first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _description(tool: mcp_types.Tool) -> str:
    return strip_hidden_text(tool.description or tool.title or "")[:_MAX_DESCRIPTION_CHARS]


def _text_of(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.ResourceLink():
            return f"[a link: {block.uri}]"
        case _:
            return f"[left out: {block.type}]"
