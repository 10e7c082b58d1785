"""A console with a client for tests, alone or as a part of a running service."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Never
from urllib.parse import quote

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestClient
from typing_extensions import override

from bot.backends.exact_prompt import PastPromptWriter
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.backends.spec import ProviderSettings
from bot.chat.access import ApiScope, ApiToken
from bot.chat.prompt import Message
from bot.chat.receipt import DroppedItem, PromptSpan, Receipt
from bot.console.answer_pages import AnswerPages, Replay
from bot.console.login import API_TOKEN_PREFIX, ConsoleLinks, generate_token, hash_token
from bot.console.routes import RouteGroup
from bot.platforms.web import SPEC
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.service.run import Service, open_service
from bot.settings import Settings
from bot.storage.database import Database
from bot.storage.operation import SqlMessageNotes
from bot.storage.presets import PresetDrafts, PresetVersions
from bot.storage.reports import AnswerLog
from bot.storage.tokens import ConsoleTokens
from bot.templates.renderer import Renderer
from tests.fakes import FakeClock
from tests.platforms.web.channel import Channel
from tests.samples import mask_secret
from tests.support.store import RECEIPT, store_answer
from tests.waiting import wait_until

Client = TestClient[web.Request, web.Application]


@dataclass
class ConsoleUnderTest:
    client: Client
    tokens: ConsoleTokens
    clock: FakeClock
    database: Database
    _reader: dict[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def origin(self) -> str:
        return str(self.client.make_url("/")).rstrip("/")

    async def login_token(self) -> str:
        link = await ConsoleLinks(self.tokens, self.clock, self.origin).make_login_link()
        return link.partition("#")[2]

    async def page(self, path: str, **headers: str) -> str:
        answer = await self.client.get(path, headers=headers)
        assert answer.status == 200, await answer.text()
        return await answer.text()

    async def read(self, path: str) -> Any:
        self._reader = self._reader or await self.bearer(ApiScope.READ, name="reader")
        return json.loads(await self.page(f"/api/v1{path}", **self._reader))

    async def send_form(self, path: str, shown_at: str, **fields: str) -> aiohttp.ClientResponse:
        csrf = hidden_fields(await self.page(shown_at))["csrf"]
        return await self.client.post(
            path, data={"csrf": csrf, **fields}, headers={"Origin": self.origin}
        )

    async def log_in(self) -> aiohttp.ClientResponse:
        """Exchange a one-time token for a session cookie."""
        return await self.send_token(await self.login_token())

    async def send_token(self, token: str) -> aiohttp.ClientResponse:
        return await self.client.post(
            "/login",
            data={"token": token},
            headers={"Origin": self.origin},
            allow_redirects=False,
        )

    async def bearer(self, *scopes: ApiScope, name: str = "") -> dict[str, str]:
        token = generate_token(API_TOKEN_PREFIX)
        name = name or "-".join(scopes) or "none"
        new = ApiToken(name, tuple(sorted(scopes)), self.clock.now())
        await self.tokens.add_api_token(hash_token(token), new)
        return {"Authorization": f"Bearer {token}"}


class Elements(HTMLParser):
    """Counts the elements of a page, and collects their attributes and texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[tuple[str, str]] = set()
        self.text = ""
        self.feed(html)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {(tag, name) for name, _ in attrs}

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


MakeParts = Callable[[Database], list[RouteGroup]]


NORA: dict[str, object] = {"name": "nora", "role_name": "Nora", "system": "You are Nora."}


MARLOWE: dict[str, object] = {"name": "marlowe", "role_name": "Marlowe", "system": "You row."}


@dataclass
class Playground:
    service: Service
    client: aiohttp.ClientSession
    address: str
    path: str = ""
    """The path of the channel's page."""
    csrf: str = ""

    async def open(self, path: str = "/playground", **headers: str) -> str:
        """Load a page; remember its path and the CSRF token of its forms."""
        async with self.client.get(self.address + path, headers=headers) as response:
            page = await response.text()
            assert response.status == 200, page
            self.path = response.url.path
        self.csrf = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
        return page

    async def send(self, path: str, **fields: str) -> tuple[int, str]:
        """Send a form; return the status, and the redirect or the page."""
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

    async def read_channel(self) -> Channel:
        store = self.service.container.web_channels
        found = await store.get(self.path.rpartition("/")[2])
        assert found is not None
        return Channel(store, found)

    async def answered(self, count: int) -> Channel:
        """Wait until the channel has `count` messages and the last is an answer; return it."""
        channel = await self.read_channel()
        await channel.wait_for(lambda all_: len(all_) == count and bool(all_[-1].buttons))
        return channel


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Playground]:
    told: list[str] = []
    async with open_service(settings, told.append, [SPEC]) as service:
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


def hidden_fields(page: str) -> Mapping[str, str]:
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))


async def call(console: Playground, method: str, path: str, body: object = None) -> Any:
    """Send an API request as a page does; return the status and the response."""
    async with console.client.request(
        method,
        f"{console.address}/api/v1{path}",
        json=body,
        headers={"Origin": console.address, "X-CSRF-Token": console.csrf},
    ) as response:
        return response.status, await response.json()


async def read(console: Playground, path: str) -> str:
    async with console.client.get(console.address + path) as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def edit(console: Playground, name: str, /, **changes: object) -> str:
    """Change keys in the draft of a preset; return the text of the draft."""
    _, found = await call(console, "GET", f"/presets/{quote(name)}")
    content = json.loads(found["draft"] or found["published"])
    text = json.dumps({**content, **changes}, indent=2, ensure_ascii=False)
    status, _ = await call(
        console,
        "PUT",
        f"/presets/{quote(name)}/draft",
        {"content": text, "revision": found["revision"]},
    )
    assert status == 200
    return text


PROVIDERS: dict[str, ProviderSettings] = {
    "cheap": OpenAISettings(kind="openai", prices={"small": {"input": 1, "output": 2}}),
    "dear": OpenAISettings(kind="openai", model="big", prices={"*": {"input": 100, "output": 200}}),
}


def no_replay(*_: object) -> Never:
    raise NotImplementedError


def answer_pages(database: Database, folder: Path, replay: Replay = no_replay) -> RouteGroup:
    writer = PastPromptWriter({}, folder, Renderer(), mask_secret)
    versions = PresetVersions(database, SystemClock())
    drafts = PresetDrafts(database)
    notes = SqlMessageNotes(database, SystemClock())
    answers = AnswerLog(database)
    clock = SystemClock()
    return AnswerPages(answers, writer, {}, versions, PROVIDERS, (), drafts, replay, notes, clock)


async def store_answers(console: ConsoleUnderTest, *receipts: Receipt) -> None:
    await store_answer(console.database, *receipts)


def receipt_of(text: str) -> Receipt:
    return replace(
        RECEIPT,
        preset=text[:100],
        answer=text,
        thoughts=text,
        prompt=replace(
            RECEIPT.prompt,
            messages=(Message("system", text), Message("user", text)),
            parameters={"temperature": text},
            speakers=(text[:50],),
        ),
        layout=(
            PromptSpan("system", 0),
            PromptSpan("lore", 1, 1, 1, text),
            PromptSpan("newest", 1),
        ),
        dropped=(DroppedItem("lore", text, text),),
    )


async def post_say(address: str, token: str, **body: str) -> int:
    """Send a message as the bot over the API; return the status."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{address}/api/v1/say", json=body) as response,
    ):
        return response.status
