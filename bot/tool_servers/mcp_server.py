"""Stay connected to an MCP server, and call its tools (docs/presets.md#mcp-servers).

One task owns the connection, which all chats share; a slow or oversized call does not affect other
calls. If the server restarts, Troupe reconnects, and calls wait for that within their time limit.
"""

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types
import structlog
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from typing_extensions import override

from bot.chat.prompt import ToolSpec
from bot.errors import ToolServerError
from bot.ports import Clock, ToolServer
from bot.prompting.text.confusables import strip_hidden_text
from bot.runtime.secret_file import read_single_secret
from bot.telemetry.secret_masker import mask_pasted_tokens, register_secrets
from bot.tool_servers.settings import McpServerSettings
from bot.tool_servers.transports import (
    LOGIN_REFUSED_REASON,
    NOT_ANSWERED_CODE,
    NOT_REACHED_CODE,
    BoundedTransport,
)

MAX_TOOLS = 24

_MAX_TOOL_LIST_PAGES = 8
_MAX_DESCRIPTION_CHARS = 600
_MAX_SCHEMA_CHARS = 3000
_CONNECT_SECONDS = 15.0
_FIRST_ATTEMPT_SECONDS = 5.0
_TOOL_LIST_REFRESH_SECONDS = 60.0
_MAX_DELAY_SECONDS = 60.0
_MAX_TOLERATED_FAILURES = 3
_INVALID_CALL_CODES = {mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND}
_UNKNOWN_SESSION_ERROR = "Session terminated"
"""The package `mcp`'s error message for status 404 within a session."""
_CONNECTION_ERRORS = (
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
    ToolServerError,
)
_log = structlog.get_logger(__name__)
_MAX_TOOL_NAME_CHARS = 64  # OpenAI and Anthropic reject longer function names
_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


class McpServer(ToolServer):
    """A connection to an MCP server. `run` opens it, and reopens it after growing delays."""

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
        self._ready_event = asyncio.Event()
        self._connection_lost = asyncio.Event()
        self._first_attempt_ended = asyncio.Event()
        self._failure_count = 0
        self.omitted_tools: Sequence[str] = ()
        """The names of the server's tools that are not offered to models."""

    @property
    @override
    def specs(self) -> Sequence[ToolSpec]:
        offers_tools = self._client is not None or self._failure_count < _MAX_TOLERATED_FAILURES
        return self._specs if offers_tools else ()

    @property
    @override
    def call_timeout_seconds(self) -> float:
        return self._settings.seconds

    @override
    async def wait_for_first_attempt(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_ATTEMPT_SECONDS):
                await self._first_attempt_ended.wait()

    @override
    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        try:
            async with asyncio.timeout(self._settings.seconds):
                result = await self._call(name, arguments)
        except _CONNECTION_ERRORS as error:
            if isinstance(error, MCPError) and error.code in _INVALID_CALL_CODES:
                return f"error: {error.message}"  # so that the model can correct its call
            raise ToolServerError(f"the MCP server {self._name}: {format_error(error)}") from error
        text = "\n".join(map(_content_to_text, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        return f"error: {text}" if result.is_error else text

    async def _call(self, name: str, arguments: Mapping[str, object]) -> mcp_types.CallToolResult:
        """Call a tool; retry if the server was restarted. Raises one of `_CONNECTION_ERRORS`."""
        for may_retry in (True, False):
            await self._ready_event.wait()
            client, tool = self._client, self._tools.get(name)
            if client is None or tool is None:
                raise ToolServerError(f"the MCP server {self._name} no longer offers {name}")
            try:
                result = await client.call_tool(tool.name, dict(arguments))
            except MCPError as error:
                was_sent = self._was_call_sent(error)
                if was_sent is None:
                    raise
                self._mark_disconnected(client)
                if not may_retry or (was_sent and not _is_repeatable(tool)):
                    raise
            else:
                self._failure_count = 0
                return result
        raise AssertionError("unreachable: the second attempt returns or raises")

    def _was_call_sent(self, error: MCPError) -> bool | None:
        """Return whether a call was sent before the server exited; None if the server is up."""
        if error.code == NOT_REACHED_CODE or error.message == _UNKNOWN_SESSION_ERROR:
            return False
        is_child_process = self._settings.command is not None
        disconnect_code = mcp_types.CONNECTION_CLOSED if is_child_process else NOT_ANSWERED_CODE
        return True if error.code == disconnect_code else None

    async def run(self) -> None:
        """Keep the connection open until cancelled."""
        while True:
            try:
                async with self._open_connection():
                    self._first_attempt_ended.set()
                    _log.info("mcp_server_connected", server=self._name, tools=len(self._specs))
                    await self._refresh_tools_until_failure()
                reason = "the server stopped or was restarted"
            except _CONNECTION_ERRORS as error:
                reason = format_error(error)
            self._failure_count += 1
            self._first_attempt_ended.set()
            _log.warning("mcp_server_lost", server=self._name, reason=reason)
            if self._failure_count > 1:  # the first attempt to reconnect is immediate
                await self._clock.sleep(min(_MAX_DELAY_SECONDS, 2.0 ** (self._failure_count - 2)))

    async def check(self) -> Sequence[ToolSpec]:
        """Connect once, and return the tools to offer; raise `ToolServerError` if that fails."""
        try:
            async with self._open_connection():
                return self._specs
        except _CONNECTION_ERRORS as error:
            raise ToolServerError(self._explain_failed_check(error)) from error

    def _explain_failed_check(self, error: BaseException) -> str:
        settings, prefix = self._settings, f"TROUPE_MCP_SERVERS__{self._name.upper()}__"
        reason = format_error(error)
        if settings.url is not None:
            parts = urlsplit(settings.url)
            address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            setting = "TOKEN" if LOGIN_REFUSED_REASON in reason else "URL"
            return f"{address}: {reason}; is the server running, and is {prefix}{setting} correct?"
        command = mask_pasted_tokens(shlex.join(settings.command or ()))
        has_log_file = self._log_file.is_file()
        log_text = self._log_file.read_text("utf-8", "replace").strip() if has_log_file else ""
        last_line = mask_pasted_tokens(log_text.rpartition("\n")[2])[:200]
        note = f" (last line: {last_line})" if log_text else ""
        return (
            f"`{command}` does not work ({reason}); try it in a shell, see {self._log_file}{note}"
            f", and correct {prefix}COMMAND or {prefix}ENVIRONMENT"
        )

    def _mark_disconnected(self, client: Client) -> None:
        if self._client is client:
            self._client = None
            self._ready_event.clear()
            self._connection_lost.set()

    @contextlib.asynccontextmanager
    async def _open_connection(self) -> AsyncIterator[None]:
        self._connection_lost.clear()
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(_CONNECT_SECONDS):
                client = await stack.enter_async_context(self._connect())
                await self._load_tools(client)
            self._client = client
            self._ready_event.set()
            try:
                yield
            finally:
                self._client = None
                self._ready_event.clear()

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[Client]:
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            if settings.command is not None:
                log_output = stack.enter_context(self._log_file.open("w", encoding="utf-8"))
                program, *arguments = settings.command
                environment = {
                    name: value.get_secret_value() for name, value in settings.environment.items()
                }
                parameters = StdioServerParameters(
                    command=program,
                    args=arguments,
                    env=environment,
                    encoding_error_handler="replace",
                )
                transport: Transport = stdio_client(parameters, log_output)
            else:
                token = await asyncio.to_thread(self._read_token)
                http_client = httpx2.AsyncClient(
                    headers={"Authorization": f"Bearer {token}"} if token else None,
                    timeout=httpx2.Timeout(settings.seconds, read=_TOOL_LIST_REFRESH_SECONDS * 2),
                    transport=BoundedTransport(),
                )
                await stack.enter_async_context(http_client)
                transport = streamable_http_client(settings.url or "", http_client=http_client)
            yield await stack.enter_async_context(Client(transport, cache=None))

    def _read_token(self) -> str | None:
        """Return the token, or the previous token while its file is being replaced."""
        settings = self._settings
        if settings.token_file is not None:
            try:
                token = read_single_secret(settings.token_file, "token")
            except ValueError as error:
                _log.warning("secret_file_not_read", server=self._name, reason=str(error))
            else:
                register_secrets([token])
                self._token = token
        return self._token

    async def _refresh_tools_until_failure(self) -> None:
        while not self._connection_lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TOOL_LIST_REFRESH_SECONDS):
                    await self._connection_lost.wait()
                    return
            client = self._client
            if client is not None:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await self._load_tools(client)
                self._failure_count = 0

    async def _load_tools(self, client: Client) -> None:
        all_tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_TOOL_LIST_PAGES):
            tool_page = await client.list_tools(cursor=cursor)
            all_tools += tool_page.tools
            cursor = tool_page.next_cursor
            if cursor is None:
                break
        tools: dict[str, mcp_types.Tool] = {}
        for tool in all_tools:
            name = tool_name_for_models(self._name, tool.name)
            is_small = len(json.dumps(tool.input_schema)) <= _MAX_SCHEMA_CHARS
            if self._may_offer(tool) and is_small and name is not None and len(tools) < MAX_TOOLS:
                tools.setdefault(name, tool)
        self._tools = tools
        self._specs = tuple(
            ToolSpec(name, _describe_tool(tool), tool.input_schema) for name, tool in tools.items()
        )
        offered_names = {tool.name for tool in tools.values()}
        self.omitted_tools = [tool.name for tool in all_tools if tool.name not in offered_names]

    def _may_offer(self, tool: mcp_types.Tool) -> bool:
        if self._settings.tools:
            return tool.name in self._settings.tools
        return tool.annotations is not None and tool.annotations.read_only_hint is True


def _is_repeatable(tool: mcp_types.Tool) -> bool:
    hints = tool.annotations
    return hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)


def format_error(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _describe_tool(tool: mcp_types.Tool) -> str:
    return strip_hidden_text(tool.description or tool.title or "")[:_MAX_DESCRIPTION_CHARS]


def _content_to_text(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.ResourceLink():
            return f"[a link: {block.uri}]"
        case _:
            return f"[omitted: {block.type}]"


def tool_name_for_models(server: str, tool: str) -> str | None:
    """Return the name `server_tool` in characters that providers accept, or None if too long."""
    name = _INVALID_NAME_CHARS.sub("_", f"{server}_{tool}")
    return name if tool and len(name) <= _MAX_TOOL_NAME_CHARS else None
