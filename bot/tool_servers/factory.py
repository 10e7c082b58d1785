"""Connect to MCP servers; the optional package `mcp` is imported only if some are configured."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from bot.extras import import_extra
from bot.ports import ToolServer
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.tool_servers.settings import McpServerSettings


@contextlib.asynccontextmanager
async def open_tool_servers(
    settings: Mapping[str, McpServerSettings], data_dir: Path
) -> AsyncIterator[Mapping[str, ToolServer]]:
    """Keep servers connected in the background; raise `SettingsError` if `mcp` is missing."""
    servers = make_tool_servers(settings, data_dir)
    server_tasks = [
        asyncio.create_task(server.run(), name=f"MCP server {name}")
        for name, server in servers.items()
    ]
    try:
        yield servers
    finally:
        await cancel_and_wait(server_tasks)


def make_tool_servers(settings: Mapping[str, McpServerSettings], data_dir: Path) -> dict[str, Any]:
    """Return unconnected servers by name; raise `SettingsError` if package `mcp` is missing."""
    if not settings:
        return {}
    module = import_extra("bot.tool_servers.mcp_server", "TROUPE_MCP_SERVERS__...")
    return {
        name: module.McpServer(name, one, data_dir / f"mcp_{name}.log", SystemClock())
        for name, one in settings.items()
    }
