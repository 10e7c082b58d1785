"""Offer the tools of an operator's tool servers, as many as a prompt can hold."""

import json
from collections.abc import Iterable, Mapping, Sequence

import structlog

from bot.chat.tool import ToolSpec
from bot.ports import ToolServer
from bot.tools.tool import Tool

MAX_SPEC_CHARS = 12_000
"""The most that the specifications of servers add to a prompt, as JSON."""

_MARGIN_SECONDS = 1.0  # a server ends its calls itself, and connects anew then
_log = structlog.get_logger(__name__)


def server_tools(servers: Iterable[ToolServer]) -> Sequence[Tool]:
    """Return the tools of the servers that are connected, in order, up to `MAX_SPEC_CHARS`."""
    tools: list[Tool] = []
    chars = 0
    for server in servers:
        for spec in server.specs:
            chars += len(spec.description) + len(json.dumps(spec.parameters))
            if chars > MAX_SPEC_CHARS:
                _log.warning("tools_left_out", offered=len(tools), first_left_out=spec.name)
                return tools
            tools.append(_tool(server, spec))
    return tools


def _tool(server: ToolServer, spec: ToolSpec) -> Tool:
    async def run(arguments: Mapping[str, object]) -> str:
        return await server.call(spec.name, arguments)

    return Tool(spec, run, server.call_seconds + _MARGIN_SECONDS)
