"""A service with its console and two presets, as a browser uses it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.settings import Settings
from tests.platforms.web.channel import write_settings
from tests.support.console import MARLOWE, NORA, Playground, opened


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return write_settings(tmp_path, [NORA, MARLOWE])


@pytest.fixture
async def console(settings: Settings) -> AsyncIterator[Playground]:
    async with opened(settings) as one:
        await one.open("/presets")
        yield one
