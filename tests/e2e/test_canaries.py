"""A marked value in every secret setting is in no log, answer, receipt, metric or page.

The provider repeats what it was sent in each of its errors. The settings are read from their
models, so that a new secret is among them.
"""

import json
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import Any, get_args

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from cryptography.fernet import Fernet
from pydantic import BaseModel, SecretStr

from bot.backends.registry import backend_specs
from bot.settings import settings_model
from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

MARK = "canary4f1d2c"
ENCRYPTION_KEY = Fernet.generate_key().decode()
OF_FORM = {
    "redis_url": f"redis://:{MARK}-redis@127.0.0.1:1/0",
    "encryption_keys": ENCRYPTION_KEY,
    "basic_auth": f"me:{MARK}-basic",
    "api_keys": f"sk-{MARK}-two,{MARK}-three",
    "mcp_servers.environment": json.dumps({"KEY": f"sk-{MARK}-environment"}),
}
"""What only a value of some form is taken for; every other secret gets the mark and its name."""
OF_SERVERS = {
    "mcp_servers.token": "mcp_servers.remote.token",
    "mcp_servers.environment": "mcp_servers.child.environment",
}
"""The settings of one MCP server have its name in their path, and do not go together."""
NOT_SET = {
    *("telegram.token", "discord.token"),  # those of the rigs are searched for instead
    "database_url",  # tests/storage/test_database.py tries a database that is away
}


def secret_settings(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the path of each secret among the fields of a group of settings."""
    for name, field in model.model_fields.items():
        for kind in {field.annotation, *_parts(field.annotation)}:
            if kind is SecretStr:
                yield f"{path}{name}"
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from secret_settings(kind, f"{name}.")


def _parts(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        yield part
        yield from _parts(part)


def marked_settings() -> dict[str, str]:
    """Return a variable for every secret that can be set."""
    paths = [path for path in secret_settings(settings_model()) if path not in NOT_SET]
    found = {path: OF_SERVERS.get(path, path) for path in paths}
    for spec in backend_specs():
        for name in secret_settings(spec.settings):
            provider = "basic" if name == "basic_auth" else "test"  # it excludes a key
            found[name] = f"providers.{provider}.{name}"
    return {
        f"TROUPE_{path.replace('.', '__').upper()}": OF_FORM.get(
            name, f"sk-{MARK}-{name.replace('.', '_')}"
        )
        for name, path in found.items()
    }


class RepeatingProvider:
    """Fails in every way, and repeats its request's headers and body each time."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        """What each request was authenticated by."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._fail)
        self._runner = web.AppRunner(app)
        self.base = ""

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _fail(self, request: web.Request) -> web.StreamResponse:
        sent = f"{dict(request.headers)} {await request.text()}"
        self.keys.append(request.headers["Authorization"])
        error = {"message": sent, "type": sent, "code": sent, "param": sent}
        event = f"data: {json.dumps({'error': error})}\n\n"
        statuses = (400, 401, 403, 404, 413, 422, 429, 500)
        ways: list[web.Response] = [
            *(web.json_response({"error": error}, status=status) for status in statuses),
            web.json_response([{"error": error}], status=400, headers={"X-Sent": MARK}),
            web.Response(status=302, headers={"Location": f"http://127.0.0.1:1/{MARK}"}),
            web.Response(text=event, content_type="text/event-stream"),
            web.Response(text=f"<html>{sent}</html>", content_type="text/html"),
            web.Response(text=f"data: {sent}\n\n", content_type="text/event-stream"),
        ]
        return ways[len(self.keys) % len(ways)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[RepeatingProvider]:
    repeating = RepeatingProvider()
    await repeating.start()
    yield repeating
    await repeating.close()


def stored_bytes(folder: Path) -> bytes:
    """Return everything in the files of a folder, receipts unpacked."""
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    with closing(connect(folder / "troupe.db")) as database:
        packed = [row[0] for row in database.execute("SELECT content FROM receipt")]
    return b"\n".join([*files, *(zlib.decompress(one) for one in packed if one)])


async def pages(service: ServiceProcess) -> bytes:
    """Return what the port of the console shows to anybody."""
    address = re.findall(r"health at (http://\S+)/readyz", service.output())[-1]
    shown = []
    async with aiohttp.ClientSession() as session:
        for path in ("/healthz", "/readyz", "/metrics", "/", "/login", "/nothing"):
            async with session.get(address + path) as response:
                shown.append(await response.read())
    return b"\n".join(shown)


async def test_no_secret_leaves_by_an_error(
    service: ServiceProcess, platforms: LoopbackPlatforms, provider: RepeatingProvider
) -> None:
    marked = marked_settings()
    assert {"TROUPE_PROVIDERS__TEST__API_KEYS", "TROUPE_EMBEDDING__API_KEY"} < marked.keys()
    fallbacks = {"fallbacks": [{"provider": "basic", "model": "m"}]}
    (service.presets / "tester.json").write_text(preset_json("tester", **fallbacks))
    for name in ("TEST", "BASIC"):
        marked[f"TROUPE_PROVIDERS__{name}__BASE_URL"] = provider.base
    marked["TROUPE_MCP_SERVERS__REMOTE__URL"] = provider.base
    marked["TROUPE_MCP_SERVERS__CHILD__COMMAND"] = "sh -c 'env; exit 1'"
    await service.start(**marked)
    await wait_until(lambda: "health at" in service.output() or not service.is_running)
    assert service.is_running, service.log_tail()
    where = platforms.telegram_dm()
    for number in range(14):
        where.ask(f"{number:x}")
        await wait_until(lambda number=number: len(platforms.bot_texts(where)) > number)  # type: ignore[misc]
    where.say("/context prompt", 0)
    where.say("/settings why", 0)
    await wait_until(lambda: len(platforms.bot_texts(where)) >= 16)

    found = {
        "the log": service.output().encode(),
        "pages and metrics": await pages(service),
        "answers": "\n".join(platforms.bot_texts(where)).encode(),
        "stored": stored_bytes(service.data),
    }
    assert await service.stop() == 0
    assert len(provider.keys) >= 14
    assert len(set(provider.keys)) >= 3, "keys that were refused are left out"
    tokens = (str(platforms.telegram.token), str(platforms.discord.token))
    for what, text in found.items():
        assert len(text) > 100, what
        for secret in (MARK, ENCRYPTION_KEY, *tokens):
            assert secret.encode() not in text, f"{secret} is in {what}"
