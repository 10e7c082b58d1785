"""A service whose only platform is the web, and a web channel for tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bot.chat.incoming import Person
from bot.chat.web_channel import WebChannel, WebMessage, web_person
from bot.platforms.web import SPEC
from bot.runtime.tasks import cancel_and_wait
from bot.service.run import Service, open_service
from bot.settings import Settings, read_settings
from bot.storage.web_channels import SqlWebChannels
from tests.waiting import PATIENCE_SECONDS


class Channel:
    """A web channel, used as the playground page uses it."""

    def __init__(self, channels: SqlWebChannels, channel: WebChannel) -> None:
        self.store = channels
        self.channel = channel
        self._said = 0

    async def say(
        self, text: str, author: Person | None = None, reply_to: str | None = None
    ) -> str:
        self._said += 1
        name = f"m{self._said}"
        who = author or self.channel.people[0]
        said = WebMessage(name, who, text, datetime.now(UTC), reply_to=reply_to)
        await self.store.add(self.channel.id, [said])
        return name

    async def press(self, message: WebMessage, label: str, author: Person | None = None) -> None:
        [button] = [one for one in message.buttons if label in one.label]
        self._said += 1
        who = author or self.channel.people[0]
        pressed = WebMessage(
            f"p{self._said}", who, "", datetime.now(UTC), reply_to=message.id, press=button.data
        )
        await self.store.add(self.channel.id, [pressed])

    async def add_person(self, name: str) -> Person:
        person = web_person(name)
        self.channel = replace(self.channel, people=(*self.channel.people, person))
        await self.store.change(self.channel.id, lambda _: self.channel)
        return person

    async def messages(self) -> Sequence[WebMessage]:
        found = await self.store.newest(self.channel.id, 1000)
        return [one for one in found if one.is_shown]

    async def texts(self) -> list[str]:
        return [one.text for one in await self.messages()]

    async def wait_for(
        self, condition: Callable[[Sequence[WebMessage]], bool]
    ) -> Sequence[WebMessage]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(shown := await self.messages()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return shown

    async def wait_for_texts(self, *texts: str) -> Sequence[WebMessage]:
        return await self.wait_for(lambda shown: [one.text for one in shown] == list(texts))


def write_settings(
    folder: Path, presets: Sequence[dict[str, object]], **settings: object
) -> Settings:
    """Write presets to files; return the settings of a service that uses them."""
    (folder / "presets").mkdir(exist_ok=True)
    for preset in presets:
        path = folder / "presets" / f"{preset['name']}.json"
        path.write_text(json.dumps({"provider": "echo", "model": "m", **preset}), encoding="utf-8")
    given: dict[str, object] = {
        "data_dir": folder / "data",
        "presets_dir": folder / "presets",
        "default_preset": presets[0]["name"],
        "providers": {"echo": {"kind": "echo"}},
        "console": {"port": 0},
        **settings,
    }
    return read_settings(**given)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Service]:
    """Run the service during the block."""
    async with open_service(settings, lambda _line: None, [SPEC]) as service:
        task = asyncio.create_task(service.serve())
        try:
            yield service
        finally:
            await cancel_and_wait([task])


async def open_channel(service: Service, look: str = "", name: str = "harbour-inn") -> Channel:
    """Create a channel with one person."""
    store = service.container.web_channels
    channel = WebChannel("c1", name, look, (web_person("alice"),), datetime.now(UTC))
    await store.create(channel)
    return Channel(store, channel)
