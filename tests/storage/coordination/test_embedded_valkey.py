"""The bundled Valkey server starts in any data directory."""

import tempfile
from pathlib import Path

import pytest
from redis.asyncio import Redis

from bot.storage.coordination.embedded_valkey import run_embedded_valkey


@pytest.mark.service
async def test_socket_is_short_where_the_data_directory_has_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_path = tmp_path / ("f" * 100)
    long_path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long_path))

    async with run_embedded_valkey(long_path) as url, Redis.from_url(url) as redis:
        assert await redis.ping()
