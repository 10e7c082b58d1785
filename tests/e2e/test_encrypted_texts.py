"""With TROUPE_ENCRYPT_TEXTS, no file of a database and no value in Redis has a word of a chat."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from cryptography.fernet import Fernet
from redis.asyncio import Redis

from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess, preset_json
from tests.e2e.waiting import wait_until
from tests.postgres import create_postgres_database, run_postgres_program
from tests.valkey import run_valkey

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KEY = Fernet.generate_key().decode()


@dataclass
class Installation:
    """A service, where its database keeps its files, and its Redis."""

    service: ServiceProcess
    files: Path
    redis: Redis | None

    async def stored(self) -> bytes:
        """Return every byte of the files of the database, its log included."""
        if self.redis is not None:  # some commits are in the server's memory for a moment
            where = ("-h", str(self.files), "-U", "postgres")
            await run_postgres_program("psql", *where, "-c", "CHECKPOINT")
        return b"\n".join(_read(file) for file in sorted(self.files.rglob("*")) if file.is_file())

    async def shared(self) -> list[bytes]:
        """Return every value in the Redis that holds turns."""
        if self.redis is None:
            return []
        keys = [key async for key in self.redis.scan_iter("*window:*")]
        values = [await self.redis.get(key) for key in keys]
        return [value for value in values if isinstance(value, bytes)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:  # the server has just removed it
        return b""


@pytest_asyncio.fixture(loop_scope="module", params=["sqlite", "postgresql"])
async def installation(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    platforms: LoopbackPlatforms,
    model: ModelServer,
) -> AsyncIterator[Installation]:
    service = ServiceProcess(tmp_path, platforms, model)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.kill)
        if request.param == "sqlite":
            yield Installation(service, service.data, None)
            return
        folder = request.getfixturevalue("postgres_folder")
        address = await stack.enter_async_context(run_valkey(tmp_path))
        redis = Redis.from_url(address)
        stack.push_async_callback(redis.aclose)
        service.settings["TROUPE_DATABASE_URL"] = await create_postgres_database(folder)
        service.settings["TROUPE_REDIS_URL"] = address
        yield Installation(service, Path(folder), redis)


@pytest.mark.parametrize("is_on", [True, False])
async def test_words_of_a_conversation_are_in_no_file_of_the_database(
    installation: Installation, platforms: LoopbackPlatforms, model: ModelServer, *, is_on: bool
) -> None:
    service, word = installation.service, f"canary{secrets.token_hex(8)}"
    service.settings["TROUPE_ENCRYPTION_KEYS"] = KEY
    service.settings["TROUPE_ENCRYPT_TEXTS"] = str(is_on).lower()
    words = {name: f"{word}{name}" for name in ("preset", "person", "said", "waits")}
    (service.presets / "tester.json").write_text(preset_json("tester", system=words["preset"]))
    await service.start_and_wait()
    where = platforms.telegram_dm()
    where.say(f"/me I am {words['person']}", 0)
    await wait_until(lambda: len(platforms.bot_texts(where)) == 1)
    where.say(f"please Tab1:12 {words['said']}", 0)
    await wait_until(lambda: len(platforms.bot_texts(where)) == 2)
    where.say("/context prompt", 0)
    await wait_until(lambda: len(platforms.bot_texts(where)) == 3)
    sent = str(model.requests[-1])
    assert all(words[name] in sent for name in ("preset", "person", "said"))

    model.gate.clear()
    try:
        reached = model.halfway
        where.say(f"please Tab2:12 {words['waits']}", 0)
        await wait_until(lambda: model.halfway > reached)
        shared = await installation.shared()
        await service.kill()  # what waits stands in the inbox, and in the log of the database
        stored = await installation.stored()
    finally:
        model.gate.set()
    assert bool(shared) == (installation.redis is not None)
    found = {name: one.encode() in stored for name, one in words.items()}
    assert found == dict.fromkeys(words, not is_on)
    assert any(word.encode() in value for value in shared) is (bool(shared) and not is_on)

    await service.start_and_wait()
    await wait_until(lambda: len(platforms.bot_texts(where)) == 4)
    assert all(words[name] in str(model.requests[-1]) for name in words)
    assert await service.stop() == 0


async def test_wrong_key_is_named_at_start_and_loses_nothing(
    installation: Installation, platforms: LoopbackPlatforms
) -> None:
    service = installation.service
    service.settings |= {"TROUPE_ENCRYPTION_KEYS": KEY, "TROUPE_ENCRYPT_TEXTS": "true"}
    await service.start_and_wait()
    where = platforms.telegram_dm()
    where.ask("ac1")
    await wait_until(lambda: len(platforms.bot_texts(where)) == 1)
    assert await service.stop() == 0
    other = Fernet.generate_key().decode()
    for wrong in ({"TROUPE_ENCRYPTION_KEYS": other}, {"TROUPE_ENCRYPTION_KEYS": ""}):
        for is_on in ("true", "false"):
            await service.start(**wrong, TROUPE_ENCRYPT_TEXTS=is_on)
            assert await service.wait_for_exit() == 1
            said = service.output().strip().splitlines()
            assert len(said) == 1, said
            assert "TROUPE_ENCRYPTION_KEYS" in said[0]
    await service.start_and_wait()
    where.ask("ac2")
    await wait_until(lambda: len(platforms.bot_texts(where)) == 2)
    assert await service.stop() == 0
