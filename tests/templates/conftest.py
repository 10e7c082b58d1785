"""Fixtures that render templates."""

from collections.abc import AsyncIterator

import pytest

from bot.templates.renderer import Renderer


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    async with Renderer() as running:
        yield running
