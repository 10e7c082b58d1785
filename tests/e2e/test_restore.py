"""Test that restoring an old backup repeats no answers and restores no forgotten data.

The same drill must fail without `troupe db restore`: then questions are answered twice, and
forgotten messages return.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tests.postgres import create_postgres_database, run_postgres_program
from tests.support.chats import Chat, Platforms
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.shapes import Installer
from tests.support.transcripts import CheckResult, check_transcripts, expected_answer
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES
_BEFORE, _SINCE = "CANARY-0f3a", "CANARY-9b7c"
"""Words forgotten after the backup; one was sent before the backup, the other after it."""


@dataclass
class Installation:
    """A service whose database can be backed up, restored, and read."""

    service: Service
    back_up: Callable[[], Awaitable[None]]
    restore: Callable[[bool], Awaitable[None]]
    """Restores the backup; False: without `troupe db restore`."""
    content: Callable[[], Awaitable[bytes]]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["sqlite", "postgresql"])
async def installation(
    request: pytest.FixtureRequest, module_installer: Installer
) -> AsyncIterator[Installation]:
    async with AsyncExitStack() as stack:
        service = module_installer.install(request.param)
        stack.push_async_callback(service.kill)
        if request.param == "sqlite":
            yield on_sqlite(service)
            return
        postgres = request.getfixturevalue("postgres_folder")
        service.settings["TROUPE_DATABASE_URL"] = await create_postgres_database(postgres)
        yield on_postgres(service, postgres)


def on_sqlite(service: Service) -> Installation:
    backup, database = service.folder / "backup.db", service.data / "troupe.db"
    logs = [Path(f"{database}{end}") for end in ("-wal", "-shm")]

    async def back_up() -> None:
        backup.unlink(missing_ok=True)
        await service.run_command("db", "backup", str(backup))

    async def restore(is_prepared: bool) -> None:
        if is_prepared:
            await service.run_command("db", "restore", str(backup))
            return
        for log in logs:
            log.unlink(missing_ok=True)
        shutil.copyfile(backup, database)

    async def content() -> bytes:
        files = [database, *logs[:1]]
        return b"".join(file.read_bytes() for file in files if file.is_file())

    return Installation(service, back_up, restore, content)


def on_postgres(service: Service, folder: str) -> Installation:
    backup = service.folder / "backup.dump"
    connect = ("-h", folder, "-U", "postgres")

    def name() -> str:
        return urlsplit(service.settings["TROUPE_DATABASE_URL"]).path.lstrip("/")

    async def back_up() -> None:
        await run_postgres_program("pg_dump", *connect, "-Fc", "-f", str(backup), name())

    async def restore(is_prepared: bool) -> None:
        url = await create_postgres_database(folder, with_tables=False)
        service.settings["TROUPE_DATABASE_URL"] = url
        await run_postgres_program("pg_restore", *connect, "-d", name(), str(backup))
        if is_prepared:
            stopped = (service.folder / "stopped").read_text()
            await service.run_command("db", "restored", "--answered-until", stopped)

    async def content() -> bytes:
        return await run_postgres_program("pg_dump", *connect, "--data-only", "--inserts", name())

    return Installation(service, back_up, restore, content)


async def drill(
    installation: Installation,
    platforms: Platforms,
    model: Model,
    names: str,
    *,
    is_prepared: bool,
) -> tuple[CheckResult, bytes]:
    """Back up, continue, lose the database, and restore; check the messages.

    Returns:
        The result of checking the visible messages, and the content of the database.
    """
    service = installation.service
    await service.start_and_wait()
    begun = [platforms.telegram_dm(), platforms.telegram_group(), platforms.channel()]
    unseen, delayed = platforms.telegram_dm(), platforms.telegram_dm()
    chats = [*begun, unseen, delayed]
    private = [platforms.telegram_dm(), platforms.channel()]
    later = platforms.channel()
    await ask(chats, f"{names}0")
    await ask(private, f"{names}1", _BEFORE)
    await ask([later], f"{names}2")
    model.gate.clear()
    await ask_until_halfway(model, begun, f"{names}3")
    chunk_count, model.chunk_count = model.chunk_count, 1  # stops before its first word
    await ask_until_halfway(model, [unseen], f"{names}3")
    model.chunk_count = chunk_count
    limit = {"match": {"chat_id": delayed.chat}, "times": 1000, "retry_after": 1}
    platforms.telegram.fault("sendMessage", **limit)
    await ask_until_halfway(model, [delayed], f"{names}3")
    await wait_until(lambda: platforms.telegram.faults[0]["times"] < 1000)
    await installation.back_up()
    platforms.end_faults()
    assert _BEFORE.encode() in (await installation.content())
    model.gate.set()
    await answered(chats, f"{names}3")
    await ask(chats, f"{names}4")
    await ask([later], f"{names}5", _SINCE)
    for chat in (*private, later):
        chat.tell("/forget last")
        await chat.shows_new("I have forgotten")
    # Else Telegram gives it the last command once more, which then forgets the words again.
    await wait_until(lambda: not platforms.telegram.updates)
    await service.kill()
    stopped = datetime.now(UTC) + timedelta(seconds=2)
    (service.folder / "stopped").write_text(stopped.isoformat())
    await asyncio.sleep(4)  # platforms write whole seconds, and clocks differ
    for chat in chats:
        chat.ask(f"{names}6")

    await installation.restore(is_prepared)
    assert (_BEFORE.encode() in await installation.content()) != is_prepared

    await service.start_and_wait()
    await answered(chats, f"{names}6")
    await ask([later], f"{names}7")
    shown = {chat.name for chat in (*chats, *private, later)}
    result = check_transcripts(
        post
        for post in platforms.messages()
        if post.conversation in shown and not (post.by_bot and "I have forgotten" in post.text)
    )
    stored = await installation.content()
    await service.kill()
    return result, stored


async def ask_until_halfway(model: Model, chats: list[Chat], name: str) -> None:
    async with model.reaching_half(len(chats)):
        for chat in chats:
            chat.ask(name)


async def ask(chats: list[Chat], name: str, words: str = "") -> None:
    for chat in chats:
        chat.ask(name, text=f"{words} please")
    await answered(chats, name)


async def answered(chats: list[Chat], name: str) -> None:
    expected = expected_answer(f"T{name}:12")
    for chat in chats:
        await chat.wait_until(lambda: expected in chat.texts())  # noqa: B023


async def test_restore_sends_nothing_twice_and_keeps_forgotten_data_deleted(
    installation: Installation, platforms: Platforms, model: Model
) -> None:
    result, stored = await drill(installation, platforms, model, "7a", is_prepared=True)
    assert result.is_clean, str(result)
    assert result.questions == 25
    assert _BEFORE.encode() not in stored
    assert _SINCE.encode() not in stored


@pytest.mark.soak
async def test_restoring_without_troupe_db_restore_repeats_answers(
    installation: Installation, platforms: Platforms, model: Model
) -> None:
    result, stored = await drill(installation, platforms, model, "7b", is_prepared=False)
    assert any("7b3" in answer for answer in result.repeated), str(result)
    assert _BEFORE.encode() in stored
