"""Test that logs and encrypted databases contain no message texts, and nothing leaks secrets."""

import json
import secrets
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import connect
from typing import Any, get_args

import pytest
import pytest_asyncio
from aiohttp import web
from cryptography.fernet import Fernet
from pydantic import BaseModel, SecretStr
from redis.asyncio import Redis

from bot.backends.registry import backend_specs
from bot.settings import settings_model
from tests.postgres import create_postgres_database, run_postgres_program
from tests.support.chats import Platforms
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json
from tests.support.transcripts import expected_answer
from tests.valkey import run_valkey
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES

MARK = "canary4f1d2c"
KEY = Fernet.generate_key().decode()


# --- the log -------------------------------------------------------------------------------------


@pytest.mark.runs_with(
    preset_json("tester", busy="queue", system="The persona knows canarypersona."),
    TROUPE_LOG_FORMAT="json",
)
async def test_logs_contain_no_message_texts(
    running: Service, platforms: Platforms, model: Model
) -> None:
    """Marked words in messages, commands, names, and failures never appear in the logs."""
    wire = platforms.discord
    private, group, channel = map(platforms.open, ("telegram_dm", "telegram_group", "channel"))
    for where in (private, group, channel):
        where.say(f"{MARK} overheard", 1)
        await where.ask_and_wait(text=f"{MARK} please")
    answer = channel.texts()[-1]
    named = wire.member(platforms.guild, f"{MARK}-name")
    wire.say(named, channel.chat, f"{channel.mention}{MARK} from somebody with a name Tee80:12")
    await channel.shows_new(expected_answer("Tee80:12"))
    for text in (f"/me I am {MARK}", f"/preset use {MARK}", f"/{MARK} {MARK}", "/forget last"):
        count = len(private.texts())
        private.say(text)
        await private.shows_new(since=count)

    # What fails on the way: a send that is refused, one whose response is lost, a dead model.
    platforms.telegram.fault("sendMessage", error_code=400, description="Bad Request: no rights")
    private.ask(text=MARK)
    await wait_until(lambda: "refused" in running.output())
    platforms.end_faults()
    platforms.telegram.fault("sendMessage", drop=True, after=True)
    await private.ask_and_wait(text=MARK)
    platforms.end_faults()
    with model.held():
        async with model.reaching_half():
            last = private.ask(words=40, text=MARK)
        await running.kill()
    await running.start_and_wait()
    await private.wait_until(lambda: last.answer in private.texts())
    assert await running.stop() == 0

    printed = running.log.read_text().splitlines()
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert {"send_refused", "outcome_reconciled"} <= {line["event"] for line in lines}
    words = (MARK, "canarypersona", "overheard", answer[-20:])
    assert [(line, word) for line in printed for word in words if word in line] == []


# --- secret settings -----------------------------------------------------------------------------

OF_FORM = {
    "redis_url": f"redis://:{MARK}-redis@127.0.0.1:1/0",
    "encryption_keys": KEY,
    "basic_auth": f"me:{MARK}-basic",
    "api_keys": f"sk-{MARK}-two,{MARK}-three",
    "mcp_servers.environment": json.dumps({"KEY": f"sk-{MARK}-environment"}),
}
"""Values of settings that require a certain form; other secrets consist of the mark and a name."""
OF_SERVERS = {
    "mcp_servers.token": "mcp_servers.remote.token",
    "mcp_servers.environment": "mcp_servers.child.environment",
}
"""Paths of MCP settings contain a server's name; the two settings exclude each other."""
PAGES = ("healthz", "readyz", "metrics", "", "login", "nothing")
NOT_SET = {
    *("telegram.token", "discord.token"),  # those of the rigs are searched for instead
    "database_url",  # tests/storage/test_database.py tries a database that is away
}


def secret_settings(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the path of each secret in a settings model."""
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
    """Return a marked value for every secret setting, including any new setting."""
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
    """A provider that fails in every way and echoes the request's headers and body."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        """The Authorization header of each request."""

    async def fail(self, request: web.Request) -> web.StreamResponse:
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


@pytest_asyncio.fixture(loop_scope="session")
async def provider() -> AsyncIterator[tuple[RepeatingProvider, str]]:
    """Yield a provider and its address."""
    repeating, app = RepeatingProvider(), web.Application()
    app.router.add_route("*", "/{path:.*}", repeating.fail)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield repeating, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


def stored_bytes(folder: Path) -> bytes:
    """Return the contents of all files in a folder, and of the unpacked receipts."""
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    with closing(connect(folder / "troupe.db")) as database:
        packed = [row[0] for row in database.execute("SELECT content FROM receipt")]
    return b"\n".join([*files, *(zlib.decompress(one) for one in packed if one)])


async def test_errors_never_contain_secrets(
    installed: Service,
    platforms: Platforms,
    provider: tuple[RepeatingProvider, str],
) -> None:
    """Every error of the provider repeats the request."""
    repeating, address = provider
    marked = marked_settings()
    assert {"TROUPE_PROVIDERS__TEST__API_KEYS", "TROUPE_EMBEDDING__API_KEY"} < marked.keys()
    fallbacks = {"fallbacks": [{"provider": "basic", "model": "m"}]}
    installed.write_tester(preset_json("tester", **fallbacks))
    for name in ("TEST", "BASIC"):
        marked[f"TROUPE_PROVIDERS__{name}__BASE_URL"] = address
    marked["TROUPE_MCP_SERVERS__REMOTE__URL"] = address
    marked["TROUPE_MCP_SERVERS__CHILD__COMMAND"] = "sh -c 'env; exit 1'"
    await installed.start(**marked)
    await wait_until(lambda: "health at" in installed.output() or not installed.is_running)
    assert installed.is_running, installed.log_tail()
    where = platforms.telegram_dm()
    for number in range(14):
        where.ask()
        await where.shows_new(since=number)
    where.say("/context prompt")
    where.say("/settings why")
    await where.shows_new(since=15)

    pages = [await installed.read(path) for path in PAGES]
    assert None not in pages
    found = {
        "the log": installed.output().encode(),
        "pages and metrics": str(pages).encode(),
        "answers": "\n".join(where.texts()).encode(),
        "stored": stored_bytes(installed.data),
    }
    assert await installed.stop() == 0
    assert len(repeating.keys) >= 14
    assert len(set(repeating.keys)) >= 3, "keys that were refused are left out"
    tokens = (str(platforms.telegram.token), str(platforms.discord.token))
    for what, text in found.items():
        assert len(text) > 100, what
        for secret in (MARK, KEY, *tokens):
            assert secret.encode() not in text, f"{secret} is in {what}"


# --- encrypted texts -----------------------------------------------------------------------------


@dataclass
class Installation:
    """A service, and the folder of its database files."""

    service: Service
    files: Path
    is_postgres: bool

    async def stored(self) -> bytes:
        """Return all bytes of the database files, including the log."""
        if self.is_postgres:  # some commits are in the server's memory for a moment
            where = ("-h", str(self.files), "-U", "postgres")
            await run_postgres_program("psql", *where, "-c", "CHECKPOINT")
        return b"\n".join(_read(file) for file in sorted(self.files.rglob("*")) if file.is_file())


async def turns_in_redis(url: str) -> list[bytes]:
    async with Redis.from_url(url) as redis:
        values = [await redis.get(key) async for key in redis.scan_iter("*window:*")]
    return [value for value in values if isinstance(value, bytes)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:  # the server has just removed it
        return b""


@pytest_asyncio.fixture(loop_scope="session", params=["sqlite", "postgresql"])
async def installation(
    request: pytest.FixtureRequest, installed: Service
) -> AsyncIterator[Installation]:
    installed.settings["TROUPE_ENCRYPTION_KEYS"] = KEY
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            yield Installation(installed, installed.data, is_postgres=False)
            return
        folder = request.getfixturevalue("postgres_folder")
        address = await stack.enter_async_context(run_valkey(installed.folder))
        stack.push_async_callback(installed.kill)
        installed.settings["TROUPE_DATABASE_URL"] = await create_postgres_database(folder)
        installed.settings["TROUPE_REDIS_URL"] = address
        yield Installation(installed, Path(folder), is_postgres=True)


@pytest.mark.parametrize("is_on", [True, False])
async def test_database_files_contain_no_plain_text_of_messages(
    installation: Installation, platforms: Platforms, model: Model, *, is_on: bool
) -> None:
    service, word = installation.service, f"canary{secrets.token_hex(8)}"
    service.settings["TROUPE_ENCRYPT_TEXTS"] = str(is_on).lower()
    words = {name: f"{word}{name}" for name in ("preset", "person", "said", "waits")}
    service.write_tester(preset_json("tester", system=words["preset"]))
    await service.start_and_wait()
    where = platforms.telegram_dm()
    for count, text in enumerate((f"/me I am {words['person']}", words["said"], "/context prompt")):
        if text.startswith("/"):
            where.say(text)
        else:
            where.ask(text=text)
        await where.shows_new(since=count)
    sent = str(model.requests[-1])
    assert all(words[name] in sent for name in ("preset", "person", "said"))

    with model.held():
        async with model.reaching_half():
            last = where.ask(text=words["waits"])
        redis = service.settings.get("TROUPE_REDIS_URL")
        shared = await turns_in_redis(redis) if redis else []
        await service.kill()  # what waits stands in the inbox, and in the log of the database
        stored = await installation.stored()
    found = {name: one.encode() in stored for name, one in words.items()}
    assert found == dict.fromkeys(words, not is_on)
    assert bool(shared) == installation.is_postgres
    assert any(word.encode() in turns for turns in shared) is (bool(shared) and not is_on)

    await service.start_and_wait()
    await where.wait_until(lambda: last.answer in where.texts())
    assert all(words[name] in str(model.requests[-1]) for name in words)
    assert await service.stop() == 0


async def test_starting_with_a_wrong_key_loses_nothing(
    installation: Installation, platforms: Platforms
) -> None:
    service = installation.service
    service.settings["TROUPE_ENCRYPT_TEXTS"] = "true"
    await service.start_and_wait()
    where = platforms.telegram_dm()
    first = where.ask()
    await where.shows(first)
    assert await service.stop() == 0
    for wrong in (Fernet.generate_key().decode(), ""):
        for is_on in ("true", "false"):
            await service.start(TROUPE_ENCRYPTION_KEYS=wrong, TROUPE_ENCRYPT_TEXTS=is_on)
            assert await service.wait_for_exit() == 1
            said = service.output().strip().splitlines()
            assert len(said) == 1, said
            assert "TROUPE_ENCRYPTION_KEYS" in said[0]
    await service.start_and_wait()
    await where.shows(first, where.ask())
    assert await service.stop() == 0
