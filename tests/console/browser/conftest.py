"""A service with some messages, and a browser that is logged in."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from bot.chat.web_channel import WebMessage
from tests.console.browser.chromium import Tab, open_tab
from tests.platforms.web.channel import write_settings
from tests.support.console import MARLOWE, NORA, Playground, opened


@dataclass
class Browser:
    """A tab and the service whose pages it shows."""

    tab: Tab
    playground: Playground

    async def open(self, path: str) -> None:
        await self.tab.open(f"{self.playground.address}{path}")

    def let_nora_write_slowly(self) -> None:
        resolver = self.playground.service.container.resolver
        slow = {"echo_answer": "a word " * 2000, "echo_delay_seconds": 0.5, "echo_chunks": 4000}
        resolver.publish(resolver.presets["nora"].model_copy(update={"parameters": slow}), 2)

    async def look(self, language: str, theme: str) -> None:
        cookies = {"troupe_language": language, "troupe_theme": theme}
        await self.tab.set_cookies(self.playground.address, cookies)


def has_buttons_at(count: int, messages: Sequence[WebMessage]) -> bool:
    return len(messages) == count and bool(messages[-1].buttons)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    book = {"entries": [{"keys": ["lamp"], "content": "The lamp is lit at dusk.", "name": "Lamp"}]}
    settings = write_settings(tmp_path, [{**NORA, "lorebook": book}, MARLOWE])
    async with opened(settings) as playground, open_tab(tmp_path / "profile") as tab:
        cookies = {one.key: one.value for one in playground.client.cookie_jar}
        await tab.set_cookies(playground.address, cookies)
        await playground.open()
        await playground.send(f"{playground.path}/people", name="alice")
        await playground.open(playground.path)
        for number in range(2):
            await playground.say(f"@troupe the lamp is lit {number}", f"0000000{number}")
            channel = await playground.read_channel()
            await channel.wait_for(partial(has_buttons_at, 2 * number + 2))
        yield Browser(tab, playground)


@pytest.fixture
async def tab(browser: Browser) -> Tab:
    await browser.tab.set_size(1440, 900)
    await browser.look("en", "light")
    return browser.tab
