"""What tests of many parts start from."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.storage.database import Database, opened


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database in a file of its own."""
    async with opened(f"sqlite+aiosqlite:///{tmp_path / 'troupe.db'}") as database:
        yield database
