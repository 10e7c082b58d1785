"""A service with its console and two presets, as a browser uses it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bot.settings import Settings
from tests.console.playground.conftest import MARLOWE, NORA, Playground, opened
from tests.platforms.web.channel import write_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return write_settings(tmp_path, [NORA, MARLOWE])


@pytest.fixture
async def console(settings: Settings) -> AsyncIterator[Playground]:
    async with opened(settings) as one:
        await one.open("/presets")
        yield one


async def call(console: Playground, method: str, path: str, body: object = None) -> Any:
    """Send a request of the API as a page does; return the status and the answer."""
    async with console.client.request(
        method,
        f"{console.address}/api/v1{path}",
        json=body,
        headers={"Origin": console.address, "X-CSRF-Token": console.csrf},
    ) as response:
        return response.status, await response.json()


async def read(console: Playground, path: str) -> str:
    """Return a part of a page, as its script loads it."""
    async with console.client.get(console.address + path) as response:
        assert response.status == 200, await response.text()
        return await response.text()
