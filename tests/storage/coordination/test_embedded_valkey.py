"""The Valkey that comes along answers wherever the data directory lies."""

import tempfile
from pathlib import Path

import pytest

from bot.storage.coordination.embedded_valkey import run_embedded_valkey
from bot.storage.coordination.redis import open_coordinator


@pytest.mark.service
async def test_paths_too_long_for_a_socket_are_gone_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_away = tmp_path / ("f" * 100)
    far_away.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far_away))

    async with run_embedded_valkey(far_away) as url, open_coordinator(url) as coordinator:
        assert await coordinator.release_expired("lanes") == 0
