"""Test `troupe pause`, `resume`, `nodes`, and `dead-letters` on a running installation."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from bot.storage.database import open_without_migrating
from tests.postgres import create_postgres_database
from tests.support.chats import Platforms
from tests.support.features import ON_THE_WIRES
from tests.support.service_process import Service
from tests.support.shapes import Installer

pytestmark = ON_THE_WIRES


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["one", "two"])
async def processes(
    request: pytest.FixtureRequest, module_installer: Installer
) -> AsyncIterator[list[Service]]:
    """Return one process on SQLite, or two on PostgreSQL and Valkey."""
    names, url = ["alone"], None
    if request.param == "two":
        names = ["first", "second"]
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    installed = module_installer.processes(*names, database_url=url, with_valkey=url is not None)
    async with installed as services:
        for service in services:
            await service.start_and_wait()
        yield services


async def test_questions_get_one_notice_during_a_pause_and_answers_afterward(
    processes: list[Service], platforms: Platforms
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
    notice = await group.shows_new("⏸ I'm paused and not answering anyone right now.")
    await group.shows(first, notice)

    assert await operator.run_command("resume", "--platform", "telegram")
    for service in processes:
        await service.logs("answering_resumed")
    await group.shows(first, notice, group.ask())


def database_url(service: Service) -> str:
    return service.settings.get("TROUPE_DATABASE_URL", f"sqlite:///{service.data / 'troupe.db'}")


async def test_damaged_rows_do_not_stop_the_service(
    processes: list[Service], platforms: Platforms
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
        for key in ("preset", "observe", "scope", "persona", "anonymous_admins"):
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
    async with open_without_migrating(url) as database:
        await database.write(damage)
    missed = group.ask()
    for service in processes:
        await service.start_and_wait()
    await channel.shows(channel.ask())
    await group.shows(missed)
    assert any("not_decodable" in one.output() for one in processes)


async def test_running_processes_are_listed(processes: list[Service], platforms: Platforms) -> None:
    _, *lines = (await processes[0].run_command("nodes")).splitlines()
    assert len(lines) == len(processes)
    assert all("gateway,worker,sender,console" in line for line in lines)
    assert not any("silent" in line for line in lines)
    if len(processes) > 1:
        assert await processes[-1].stop() == 0
        _, *lines = (await processes[0].run_command("nodes")).splitlines()
        assert len(lines) == len(processes) - 1
