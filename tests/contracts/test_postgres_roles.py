"""Test three PostgreSQL roles: the owner of the tables, the service, and a read-only role."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from bot.errors import SettingsError, StoreError
from bot.runtime.clock import SystemClock
from bot.storage.copying import copy_rows
from bot.storage.database import open_database, open_without_migrating
from bot.storage.inbox import SqlInbox
from bot.storage.retention import delete_expired
from tests.checkout import CHECKOUT
from tests.postgres import create_postgres_database, run_postgres_program
from tests.samples import make_incoming
from tests.support.store import answer_in

pytestmark = pytest.mark.service

ROLES = (CHECKOUT / "deploy/postgres-roles.sql").read_text()


@pytest.fixture
async def roles(postgres_folder: str) -> dict[str, str]:
    """Return the URL for each role in a database without tables, by role name."""
    url = await create_postgres_database(postgres_folder, with_tables=False)
    database = urlsplit(url).path.lstrip("/")
    connect = ("-h", postgres_folder, "-U", "postgres", "-v", "ON_ERROR_STOP=1")
    await run_postgres_program("psql", *connect, "-d", database, "-c", ROLES)
    names = ("troupe_owner", "troupe_service", "troupe_reader")
    return {name: url.replace("postgres@", f"{name}@") for name in names}


async def test_service_works_with_a_role_that_may_only_change_rows(
    roles: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="`troupe db upgrade` with the role that owns them"):
        async with open_database(roles["troupe_service"]):
            pytest.fail("it opened")
    clock = SystemClock()
    async with (
        open_database(roles["troupe_owner"]) as database,
        open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as source,
    ):
        await SqlInbox(source, clock).receive([make_incoming("of a copy", chat="9")], {})
        async with open_database(roles["troupe_service"]) as target:
            with pytest.raises(StoreError, match="in --to does not own the tables: use the"):
                await copy_rows(source, target, lambda _table, _rows: None)
        await copy_rows(source, database, lambda _table, _rows: None)
    async with open_database(roles["troupe_service"]) as database:
        await answer_in(database, 1)
        await delete_expired(database, clock, receipt_days=1)
        for statement in ("DROP TABLE turn", "CREATE TABLE extra (id int)", "TRUNCATE inbox"):
            with pytest.raises(StoreError, match=r"permission denied|must be owner"):
                await database.write(lambda c, sql=statement: c.execute(text(sql)).close())  # type: ignore[misc]
    async with open_without_migrating(roles["troupe_reader"]) as database:
        assert await database.read(lambda c: c.execute(text("SELECT count(*) FROM inbox")).scalar())
        with pytest.raises(StoreError, match="permission denied"):
            await database.write(lambda c: c.execute(text("DELETE FROM inbox")).close())
