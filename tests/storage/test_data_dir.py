"""Test that only the owner can read the data directory and the database."""

import os
import stat
from pathlib import Path

import pytest

from bot.errors import SettingsError
from bot.storage.data_dir import DataDirUse, create_data_dir, lock_data_dir
from bot.storage.database import open_database


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_in(folder: Path) -> set[int]:
    return {mode_of(file) for file in folder.iterdir()}


def test_new_or_existing_directory_is_private(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    assert {mode_of(create_data_dir(tmp_path / name)) for name in ("new", "old")} == {0o700}


async def test_database_and_its_log_are_private(tmp_path: Path) -> None:
    file = tmp_path / "troupe.db"
    file.touch(0o644)
    async with open_database(f"sqlite:///{file}"):
        assert modes_in(tmp_path) == {0o600}


def test_service_and_terminal_can_use_the_directory_at_the_same_time(tmp_path: Path) -> None:
    with lock_data_dir(tmp_path), lock_data_dir(tmp_path, DataDirUse.TERMINAL):
        for use in DataDirUse:
            refused = pytest.raises(SettingsError, match=f"process {os.getpid()}")
            with refused, lock_data_dir(tmp_path, use):
                pytest.fail("it was locked already")
