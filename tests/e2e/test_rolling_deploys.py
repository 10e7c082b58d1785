"""Test upgrading two processes on one PostgreSQL, one after the other, under load."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from bot.storage.database import MIN_CODE_REVISION, NEWEST_REVISION, read_revision
from tests.checkout import CHECKOUT
from tests.postgres import create_postgres_database
from tests.support.chats import Platforms
from tests.support.kill_load import add_conversations, wait_until_settled
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.transcripts import check_transcripts

pytestmark = [
    pytest.mark.soak,
    pytest.mark.service,
    pytest.mark.timeout(7200),
    pytest.mark.asyncio(loop_scope="session"),
]

ROLLS = 20
QUESTIONS_A_SECOND = 2.0
MIGRATION = '''"""A newer version: a column and a table more"""

import sqlalchemy as sa
from alembic import op

revision, down_revision = {revision!r}, {before!r}
branch_labels = depends_on = None


def upgrade() -> None:
    for table in ("turn", "inbox", "outbox", "conversation"):
        op.add_column(table, sa.Column("of_" + revision, sa.Text()))
    op.create_table("new_in_" + revision, sa.Column("id", sa.Integer(), primary_key=True))
'''


class Versions:
    """Copies of the checkout, each with one more migration and its own SQL functions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trees = [CHECKOUT]
        self._revisions = [NEWEST_REVISION]

    def path(self, number: int) -> str:
        """Return the folder of a version; 0 is the checkout."""
        while number >= len(self._trees):
            self._add()
        return str(self._trees[number])

    @property
    def newest(self) -> str:
        """The database revision of the newest version so far."""
        return self._revisions[-1]

    def _add(self) -> None:
        before = self._revisions[-1]
        revision = f"9{len(self._revisions):03}"
        tree = self._folder / revision
        for name in ("bot", "migrations"):
            shutil.copytree(self._trees[-1] / name, tree / name)
        revisions = tree / "bot/storage/database.py"
        replace(revisions, f'NEWEST_REVISION = "{before}"', f'NEWEST_REVISION = "{revision}"')
        oldest = self._revisions[-2] if len(self._revisions) > 1 else MIN_CODE_REVISION
        replace(revisions, f'MIN_CODE_REVISION = "{oldest}"', f'MIN_CODE_REVISION = "{before}"')
        functions = tree / "bot/storage/functions.py"
        replace(functions, "sha256(", f'sha256(b"{revision}" + ')
        migration = MIGRATION.format(revision=revision, before=before)
        (tree / f"migrations/versions/{revision}.py").write_text(migration)
        self._trees.append(tree)
        self._revisions.append(revision)


def replace(file: Path, old: str, new: str) -> None:
    source = file.read_text()
    assert old in source
    file.write_text(source.replace(old, new, 1))


@pytest_asyncio.fixture(loop_scope="session")
async def services(
    postgres_folder: str, platforms: Platforms, model: Model, tmp_path: Path
) -> AsyncIterator[list[Service]]:
    url = await create_postgres_database(postgres_folder)
    model.answers_all = True
    async with AsyncExitStack() as stack:
        services = [Service(tmp_path / name, platforms, model) for name in ("one", "other")]
        for service in services:
            service.settings["TROUPE_DATABASE_URL"] = url
            stack.push_async_callback(service.kill)
            await service.start_and_wait()
        yield services


async def roll_out(
    services: list[Service], versions: Versions, number: int, rng: random.Random
) -> None:
    """Upgrade each process; sometimes kill and restart the other, older one meanwhile."""
    for service in services:
        assert await service.stop() == 0
        await service.start(PYTHONPATH=versions.path(number))
        await service.wait_until_ready()
        other = services[-1]
        if service is not other and rng.random() < 0.5:
            await other.kill()
            await other.start(PYTHONPATH=versions.path(number - 1))
            await other.wait_until_ready()
            assert "tables_are_newer" in other.output()


async def test_twenty_rolling_deploys_lose_and_repeat_nothing(
    services: list[Service], platforms: Platforms, tmp_path: Path, seed: int
) -> None:
    rng, asking = random.Random(seed), random.Random(seed + 1)
    versions = Versions(tmp_path)
    add_conversations(platforms)
    conversations = list(platforms.conversations.values())
    for number, conversation in enumerate(conversations):
        conversation.ask(f"f{number:04x}")
    await wait_until_settled(platforms, 60)
    asked = len(conversations)

    async def roll_all() -> None:
        for number in range(1, ROLLS + 1):
            await roll_out(services, versions, number, rng)

    rolling = asyncio.create_task(roll_all())
    while not rolling.done():
        asking.choice(conversations).ask(f"{asked:04x}", asking.randint(1, 40))
        asked += 1
        await asyncio.sleep(asking.expovariate(QUESTIONS_A_SECOND))
    await rolling
    await wait_until_settled(platforms, 100)
    tables = await read_revision(services[0].settings["TROUPE_DATABASE_URL"])
    assert tables == versions.newest

    result = check_transcripts(platforms.messages())
    print(f"seed {seed}: {ROLLS} rolls, {asked} questions: {result}")  # noqa: T201
    assert result.is_clean
    assert result.questions == asked
