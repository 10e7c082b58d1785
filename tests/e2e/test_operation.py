"""`troupe pause`, `resume`, `nodes` and `dead-letters` beside the processes of an installation."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from bot.storage.database import open_as_it_is
from tests.postgres import create_postgres_database
from tests.support.chats import LoopbackPlatforms
from tests.support.child_launcher import ChildLauncher
from tests.support.features import ON_THE_WIRES
from tests.support.model_server import ModelServer
from tests.support.service_process import ServiceProcess
from tests.valkey import run_valkey
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), *ON_THE_WIRES]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["one", "two"])
async def processes(
    request: pytest.FixtureRequest,
    platforms: LoopbackPlatforms,
    model: ModelServer,
    launcher: ChildLauncher,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[list[ServiceProcess]]:
    """One process on SQLite; or two on PostgreSQL, which hear of each other over Valkey."""
    settings = {}
    async with AsyncExitStack() as stack:
        if request.param == "two":
            postgres = request.getfixturevalue("postgres_folder")
            folder = tmp_path_factory.mktemp("valkey")
            settings["TROUPE_DATABASE_URL"] = await create_postgres_database(postgres)
            settings["TROUPE_REDIS_URL"] = await stack.enter_async_context(run_valkey(folder))
        started = []
        for number in range(2 if settings else 1):
            folder = tmp_path_factory.mktemp(f"process{number}")
            service = ServiceProcess(Path(folder), platforms, model, launcher)
            service.settings |= settings
            stack.push_async_callback(service.kill)
            await service.start_and_wait()
            started.append(service)
        yield started


async def test_questions_during_a_pause_get_one_notice_and_later_ones_an_answer(
    processes: list[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    operator = processes[-1]
    group, other = platforms.telegram_group(), platforms.channel()
    first = group.ask()
    await group.shows(first)

    assert await operator.run_command("pause", "--platform", "telegram")
    for service in processes:
        await service.logs("answering_paused")
    for _ in range(2):
        group.ask()
    await other.shows(other.ask())
    notice = await group.shows_new("⏸ I am paused and answer nobody at the moment.")
    await group.shows(first, notice)

    assert await operator.run_command("resume", "--platform", "telegram")
    for service in processes:
        await service.logs("answering_resumed")
    await group.shows(first, notice, group.ask())


def database_url(service: ServiceProcess) -> str:
    return service.settings.get("TROUPE_DATABASE_URL", f"sqlite:///{service.data / 'troupe.db'}")


_EVENT = json.dumps({"address": {"platform": "telegram", "chat": "5"}})
_BAD_EVENTS = (
    ("voted", f"'{_EVENT}'", "unknown kind 'voted'"),
    ("said", "'{'", "truncated"),
    ("said", "'[7]'", "array"),
    ("said", f"'{_EVENT}'", "missing required field"),
    ("edited", "'{\"said\": 5}'", "`"),
    ("pressed", "NULL", "no payload"),
)


async def test_rows_that_cannot_be_read_are_set_aside_and_all_chats_are_answered(
    processes: list[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    service = processes[0]
    url = database_url(service)

    def spoil(connection: Connection) -> None:
        for number, (kind, payload, _) in enumerate(_BAD_EVENTS):
            stored = (
                payload if url.startswith("sqlite") or payload == "NULL" else f"{payload}::bytea"
            )
            key = f"telegram:-99{number}"
            connection.exec_driver_sql(
                "INSERT INTO inbox (platform, external_key, conversation, kind, payload,"  # noqa: S608
                f" received_at) VALUES ('telegram', 'bad{number}', '{key}', '{kind}', {stored}, 1)"
            )
            connection.exec_driver_sql(
                "INSERT INTO conversation (key, platform, ready_since)"  # noqa: S608
                f" VALUES ('{key}', 'telegram', 1)"
            )
        connection.exec_driver_sql(
            "INSERT INTO outbox (turn, part, op, platform, chat, lane, text, buttons) VALUES"
            " ('t', 0, 'send', 'telegram', '-990', 'telegram:-990', 'hi', '{\"buttons\": [[5]]}')"
        )
        connection.exec_driver_sql(
            "INSERT INTO lane (key, platform, due_at) VALUES ('telegram:-990', 'telegram', 1)"
        )

    async with open_as_it_is(url) as database:
        await database.write(spoil)
    group = platforms.telegram_group()
    await group.shows(group.ask())
    await wait_until(lambda: sum(one.output().count("_set_aside") for one in processes) >= 7)
    assert all(one.is_running for one in processes)
    lines = (await service.run_command("dead-letters", "list")).splitlines()
    for number, (_, _, reason) in enumerate(_BAD_EVENTS):
        [line] = [one for one in lines if one.startswith("in-") and f"telegram:-99{number} " in one]
        assert "cannot be read: " in line
        assert reason in line
    assert any(one.startswith("out-") and "Expected `str`, got `int`" in one for one in lines)


async def test_damaged_cursors_and_settings_stop_no_platform(
    processes: list[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    group, channel = platforms.telegram_group(), platforms.channel()
    url = database_url(processes[0])
    is_sqlite = url.startswith("sqlite")

    def damage(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE cursor SET value = '[x'")
        names = ["telegram:moved:x", "web:c", "discord:channel 5"]
        for name in names:
            connection.exec_driver_sql(f"INSERT INTO cursor (name, value) VALUES ('{name}', '{{')")  # noqa: S608
        value = "x'ff'" if is_sqlite else "'odd'"
        for key in ("preset", "observe", "scope", "persona", "admin_notes", "anonymous_admins"):
            connection.exec_driver_sql(
                "INSERT INTO choice (scope, key, value, chosen_by, chosen_at, conversation)"  # noqa: S608
                f" VALUES ('{group.name}', '{key}', {value}, 'x', 1, '')"
            )
        if is_sqlite:  # PostgreSQL stores nothing that is not UTF-8
            connection.exec_driver_sql(
                "INSERT INTO conversation (key, platform, ready_since)"
                " VALUES (CAST(x'74ff' AS TEXT), 'telegram', 1)"
            )

    for service in processes:
        assert await service.stop() == 0
    async with open_as_it_is(url) as database:
        await database.write(damage)
    missed = group.ask()
    for service in processes:
        await service.start_and_wait()
    await channel.shows(channel.ask())
    await group.shows(missed)
    assert any("not_decodable" in one.output() for one in processes)


async def test_every_process_is_listed_and_none_that_ended(
    processes: list[ServiceProcess], platforms: LoopbackPlatforms
) -> None:
    _, *lines = (await processes[0].run_command("nodes")).splitlines()
    assert len(lines) == len(processes)
    assert all("gateway,worker,sender,console" in line for line in lines)
    assert not any("silent" in line for line in lines)
    if len(processes) > 1:
        assert await processes[-1].stop() == 0
        _, *lines = (await processes[0].run_command("nodes")).splitlines()
        assert len(lines) == len(processes) - 1
