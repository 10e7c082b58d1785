"""Contract of webhook events: signed, unique by id, delivered despite failures; both databases."""

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import asyncpg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import OpenAI
from pydantic import SecretStr
from sqlalchemy import Connection, insert
from typing_extensions import override

from bot.chat.incoming import Address, ChatJoin
from bot.chat.prompt import Usage
from bot.chat.session import TurnResult
from bot.errors import SettingsError
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.service.events import EventSender
from bot.settings import EventWebhookSettings, read_settings
from bot.storage.database import parse_url
from bot.storage.events import DRILL_PLATFORM, EventLog
from bot.storage.postgres import to_dsn
from bot.storage.tables import feedback, message_note
from bot.storage.usage import UsageLog
from tests.samples import ALICE, begin, make_incoming
from tests.support.store import RECEIPT, Store, finish
from tests.waiting import wait_until

SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
GROUP = Address("telegram", "-7")


class HastyClock(SystemClock):
    def __init__(self) -> None:
        self.waits: list[float] = []

    @override
    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0.01)


@dataclass
class Receiver:
    """A receiver that checks signatures with another library, and counts accepted events."""

    statuses: list[int] = field(default_factory=list)
    """The statuses of the next responses; after these, every event is accepted."""
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each event was accepted, by id and body."""
    silence: asyncio.Event = field(default_factory=asyncio.Event)
    """Until it is set, responses are late."""

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        OpenAI(api_key="-").webhooks.verify_signature(body, request.headers, secret=SECRET)
        status = self.statuses.pop(0) if self.statuses else 204
        if status < 300:
            self.accepted[request.headers["webhook-id"], body.decode()] += 1
            await self.silence.wait()
        return web.Response(status=status)

    @property
    def types(self) -> list[str]:
        return sorted(json.loads(body)["type"] for _, body in self.accepted)


@asynccontextmanager
async def sending(store: Store, receiver: Receiver, clock: HastyClock) -> AsyncIterator[EventLog]:
    app = web.Application()
    app.router.add_post("/hook", receiver.receive)
    async with TestServer(app) as server:
        settings = EventWebhookSettings(url=str(server.make_url("/hook")), secret=SecretStr(SECRET))
        events = EventLog(store.database, clock)
        task = asyncio.create_task(EventSender(settings, events, clock).run())
        await wait_until(lambda: clock.waits)
        try:
            yield events
        finally:
            await cancel_and_wait([task])


async def happen(store: Store, at: float) -> None:
    """Store an event of each kind, and a note and a summary, which are not events."""
    await finish(store, f"5:{at}", receipts=[RECEIPT])
    log, usage = UsageLog(store.database, SystemClock()), Usage(prompt_tokens=9, output_tokens=1)
    await log.record("telegram:5", "assistant", "local", RECEIPT.charge, usage)
    joined = ChatJoin(GROUP, f"join:{at}", ALICE, datetime.now(UTC), (GROUP.lane,))
    await store.inbox.receive([joined], {})
    rows = [
        insert(message_note).values(key="error:84f844", at=at, content="{}"),
        insert(message_note).values(key="decision:telegram:5", at=at, content="{}"),
        insert(feedback).values(receipt=at, person=ALICE.id, reaction="👍", at=at),
    ]
    for row in rows:
        await store.database.write(partial(Connection.execute, statement=row))


async def test_events_are_sent_until_they_are_accepted(store: Store) -> None:
    await happen(store, 1.0)  # before somebody wanted events
    receiver, clock = Receiver([500, 404, 429]), HastyClock()
    receiver.silence.set()
    async with sending(store, receiver, clock) as events:
        assert await events.list_recent() == []
        await happen(store, SystemClock().now())
        await wait_until(lambda: len(receiver.accepted) == 4)
        assert receiver.types == ["answered", "failed", "feedback", "joined"]
        listed = await events.list_recent()

    assert set(receiver.accepted.values()) == {1}
    assert [one for one in clock.waits if one > 1] == [2, 4, 8]
    assert len(listed) == 4
    [answered] = [body for _, body in receiver.accepted if "answered" in body]
    assert json.loads(answered)["data"]["channel"] == "telegram:5"
    assert RECEIPT.answer not in answered


async def test_event_sent_again_after_a_crash_has_the_same_id(store: Store) -> None:
    receiver = Receiver()
    async with sending(store, receiver, HastyClock()):
        await happen(store, SystemClock().now())
        await wait_until(lambda: receiver.accepted)  # its answer never arrives
    receiver.silence.set()
    for _ in range(2):
        async with sending(store, receiver, HastyClock()):
            await wait_until(lambda: len(receiver.accepted) == 4)

    assert len({event_id for event_id, _ in receiver.accepted}) == 4
    assert receiver.types == ["answered", "failed", "feedback", "joined"]


async def test_event_that_is_committed_late_is_sent_before_later_events(
    store: Store, empty_database: str
) -> None:
    if store.database.is_sqlite:
        pytest.skip("one transaction writes at a time")
    receiver, clock = Receiver(), HastyClock()
    receiver.silence.set()
    at = SystemClock().now() - 10
    async with contextlib.AsyncExitStack() as stack:
        connection = await asyncpg.connect(to_dsn(parse_url(empty_database)))
        stack.push_async_callback(connection.close)
        await stack.enter_async_context(sending(store, receiver, clock))
        late = connection.transaction()
        await late.start()
        late_row = "INSERT INTO message_note (key, at, content) VALUES ('error:0', $1, '{}')"
        await connection.execute(late_row, at)
        for number in range(1, 6):
            row = insert(message_note).values(key=f"error:{number}", at=at, content="{}")
            await store.database.write(partial(Connection.execute, statement=row))
        clock.waits.clear()
        await wait_until(lambda: len(clock.waits) > 2)
        assert not receiver.accepted
        await late.commit()
        await wait_until(lambda: len(receiver.accepted) == 6)
    assert [json.loads(body)["data"]["error"] for _, body in receiver.accepted] == [*"012345"]


async def test_deletion_drill_sends_no_events(store: Store) -> None:
    receiver, address = Receiver(), Address(DRILL_PLATFORM, "7")
    receiver.silence.set()
    async with sending(store, receiver, HastyClock()):
        asked = replace(make_incoming("a", key="7:1"), address=address)
        await store.inbox.receive([asked], {})
        claim, message = await begin(store.conversations, address.conversation)
        await store.conversations.finish(claim, message, TurnResult(receipts=[RECEIPT]))
        joined = ChatJoin(address, "join:7", ALICE, datetime.now(UTC), (address.lane,))
        await store.inbox.receive([joined], {})
        person = {"receipt": 1, "person": f"{DRILL_PLATFORM}:1", "reaction": "👍"}
        one = insert(feedback).values(at=SystemClock().now(), **person)
        await store.database.write(partial(Connection.execute, statement=one))
        await happen(store, SystemClock().now())
        await wait_until(lambda: len(receiver.accepted) == 4)
    assert not [body for _, body in receiver.accepted if DRILL_PLATFORM in body]
    assert receiver.types == ["answered", "failed", "feedback", "joined"]


async def test_event_that_is_never_accepted_does_not_block_other_events(store: Store) -> None:
    receiver = Receiver([422])
    receiver.silence.set()
    async with sending(store, receiver, HastyClock()):
        await happen(store, SystemClock().now())
        await wait_until(lambda: len(receiver.accepted) == 3)


def test_signing_secret_is_required_and_validated() -> None:
    url = "https://n8n.example/hook"
    for secret in (None, SecretStr("whsec_c2hvcnQ="), SecretStr("whsec_%")):
        with pytest.raises(SettingsError, match="TROUPE_EVENTS"):
            read_settings(events={"url": url, "secret": secret})
