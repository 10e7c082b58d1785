"""MCP servers over HTTP: tokens from files are sent, and redirects are not followed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler

from bot.errors import SettingsError, ToolServerError
from bot.runtime.clock import SystemClock
from bot.settings import collect_secrets, read_settings
from bot.telemetry.secret_masker import SecretMasker
from bot.tool_servers.mcp_server import McpServer
from bot.tool_servers.settings import McpServerSettings

SECRET = "s3cret"


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    """Run a server with one handler for all requests; yield its MCP address."""
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(application) as server:
        yield str(server.make_url("/mcp"))


async def test_token_of_a_replaced_file_is_used_at_the_next_connect(tmp_path: Path) -> None:
    given: list[str | None] = []

    async def refuse(request: web.Request) -> web.Response:
        given.append(request.headers.get("Authorization"))
        return web.Response(status=401)

    file = tmp_path / "token"
    file.write_text("hidden-old\n", encoding="utf-8")
    async with serving(refuse) as url:
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


def test_token_from_a_file_is_secret_and_invalid_settings_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hidden-1\n", encoding="utf-8")
    wiki = {"url": "http://127.0.0.1:9/mcp", "token_file": file}
    assert "hidden-1" in collect_secrets(read_settings(mcp_servers={"wiki": wiki}))
    with pytest.raises(SettingsError, match="token and token_file are both set"):
        read_settings(mcp_servers={"wiki": {**wiki, "token": "other"}})
    with pytest.raises(SettingsError, match="__TOKEN works only with __URL"):
        read_settings(mcp_servers={"wiki": {"command": "a", "token_file": file}})
    file.write_text("one two\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="should contain exactly one token"):
        read_settings(mcp_servers={"wiki": wiki})


@pytest.mark.parametrize("target", [f"http://127.0.0.1:1/{SECRET}", f"http://[{SECRET}/"])
async def test_redirect_is_neither_followed_nor_revealed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    caplog.set_level(logging.INFO)

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": target})

    async with serving(redirect) as url:
        settings = McpServerSettings.model_validate({"url": url})
        client = McpServer("demo", settings, tmp_path / "demo.log", SystemClock())
        with pytest.raises(ToolServerError, match=r"redirects to another address \(307\)") as error:
            await client.check()
    assert SECRET not in str(error.value)
    assert SECRET not in caplog.text
