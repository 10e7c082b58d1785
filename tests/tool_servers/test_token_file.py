"""The token of an MCP server may stand in a file, which is replaced while the service runs."""

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bot.errors import SettingsError, ToolServerError
from bot.runtime.clock import SystemClock
from bot.settings import collect_secrets, read_settings
from bot.telemetry.secret_masker import SecretMasker
from bot.tool_servers.mcp_server import McpServer
from bot.tool_servers.settings import McpServerSettings


async def test_token_of_a_replaced_file_is_used_at_the_next_connect(tmp_path: Path) -> None:
    given: list[str | None] = []

    async def refuse(request: web.Request) -> web.Response:
        given.append(request.headers.get("Authorization"))
        return web.Response(status=401)

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", refuse)
    file = tmp_path / "token"
    file.write_text("hidden-old\n", encoding="utf-8")
    async with TestServer(application) as server:
        url = str(server.make_url("/mcp"))
        settings = McpServerSettings.model_validate({"url": url, "token_file": file})
        client = McpServer("demo", settings, tmp_path / "demo.log", SystemClock())
        for content in (None, "hidden-new\n", "\n"):  # the last one: it is just being replaced
            if content is not None:
                file.write_text(content, encoding="utf-8")
            with pytest.raises(ToolServerError):
                await client.check()
    used = list(dict.fromkeys(given))
    assert used == ["Bearer hidden-old", "Bearer hidden-new"]
    assert given[-1] == "Bearer hidden-new"
    assert "hidden-new" not in SecretMasker(()).mask("it said hidden-new")


def test_token_of_a_file_is_a_secret_and_a_wrong_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hidden-1\n", encoding="utf-8")
    wiki = {"url": "http://127.0.0.1:9/mcp", "token_file": file}
    assert "hidden-1" in collect_secrets(read_settings(mcp_servers={"wiki": wiki}))
    with pytest.raises(SettingsError, match="token and token_file are both set"):
        read_settings(mcp_servers={"wiki": {**wiki, "token": "other"}})
    with pytest.raises(SettingsError, match="__TOKEN needs __URL"):
        read_settings(mcp_servers={"wiki": {"command": "a", "token_file": file}})
    file.write_text("one two\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="there is not one token in"):
        read_settings(mcp_servers={"wiki": wiki})
