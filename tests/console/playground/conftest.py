"""A service with its console, and somebody who is logged in."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from bot.platforms.web import SPEC
from bot.runtime.tasks import cancel_and_wait
from bot.service.run import Service, running
from bot.settings import Settings
from tests.platforms.web.channel import Channel, write_settings
from tests.waiting import wait_until

NORA: dict[str, object] = {"name": "nora", "role_name": "Nora", "system": "You are Nora."}
MARLOWE: dict[str, object] = {"name": "marlowe", "role_name": "Marlowe", "system": "You row."}


@dataclass
class Playground:
    """The playground as a browser uses it."""

    service: Service
    client: aiohttp.ClientSession
    address: str
    path: str = ""
    """Of the channel."""
    csrf: str = ""

    async def open(self, path: str = "/playground", **headers: str) -> str:
        """Load a page; remember the channel and the token of its forms."""
        async with self.client.get(self.address + path, headers=headers) as response:
            page = await response.text()
            assert response.status == 200, page
            self.path = response.url.path
        self.csrf = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
        return page

    async def send(self, path: str, **fields: str) -> tuple[int, str]:
        """Send a form; return the status, and where to go or what is shown."""
        async with self.client.post(
            self.address + path,
            data={"csrf": self.csrf, **fields},
            headers={"Origin": self.address},
            allow_redirects=False,
        ) as response:
            return response.status, response.headers.get("Location") or await response.text()

    async def say(self, text: str, key: str, author: str = "web:alice", **more: str) -> None:
        status, told = await self.send(
            f"{self.path}/messages", author=author, text=text, key=key, **more
        )
        assert status == 303, told

    @property
    def channel(self) -> Channel:
        """The channel in the store."""
        store = self.service.container.web_channels
        return Channel(store, self._known)

    async def read_channel(self) -> Channel:
        found = await self.service.container.web_channels.get(self.path.rpartition("/")[2])
        assert found is not None
        self._known = found
        return self.channel


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Playground]:
    """Run a service, and log in to its console."""
    told: list[str] = []
    async with running(settings, told.append, [SPEC]) as service:
        task = asyncio.create_task(service.serve())
        try:
            await wait_until(lambda: any("#" in line for line in told))
            link = next(found[0] for line in told if (found := re.search(r"http\S+#\S+", line)))
            address, _, rest = link.partition("/login")
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
                token = rest.partition("#")[2]
                await client.post(
                    f"{address}/login", data={"token": token}, headers={"Origin": address}
                )
                yield Playground(service, client, address)
        finally:
            await cancel_and_wait([task])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return write_settings(tmp_path, [NORA, MARLOWE])


@pytest.fixture
async def playground(settings: Settings) -> AsyncIterator[Playground]:
    async with opened(settings) as one:
        yield one


def hidden_fields(page: str) -> Mapping[str, str]:
    """Return the hidden fields of a page by name."""
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
