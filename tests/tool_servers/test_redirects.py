"""Where an MCP server leads to may hold a secret: it is neither followed nor told."""

import logging
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bot.errors import ToolServerError
from bot.runtime.clock import SystemClock
from bot.tool_servers.mcp_server import McpServer
from bot.tool_servers.settings import McpServerSettings

SECRET = "s3cret"


@pytest.mark.parametrize("target", [f"http://127.0.0.1:1/{SECRET}", f"http://[{SECRET}/"])
async def test_redirect_to_another_address_is_not_followed_and_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    caplog.set_level(logging.INFO)

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": target})

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", redirect)
    async with TestServer(application) as server:
        url = str(server.make_url("/mcp"))
        settings = McpServerSettings.model_validate({"url": url})
        client = McpServer("demo", settings, tmp_path / "demo.log", SystemClock())
        with pytest.raises(ToolServerError, match=r"redirects to another address \(307\)") as error:
            await client.check()
    assert SECRET not in str(error.value)
    assert SECRET not in caplog.text
