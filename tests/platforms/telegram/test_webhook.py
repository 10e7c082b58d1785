"""Test that only Telegram may call the webhook, and that it stores messages before responding."""

import asyncio
import gzip
import io
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs

from bot.chat.incoming import Incoming
from bot.console.server import serve_http, webhook_routes
from bot.platforms.telegram.settings import TelegramSettings
from bot.settings import ConsoleSettings
from tests.attacks import expanded, with_ours
from tests.platforms.telegram.conftest import Rig
from tests.platforms.telegram.messages import WIRE_FORMS
from tests.waiting import PATIENCE_SECONDS, wait_until

PATH = "/telegram"
SECRET = "a-secret-of-telegram_1"
HEADER = "X-Telegram-Bot-Api-Secret-Token"
BODY_SECONDS = 0.3
GOOD = WIRE_FORMS["update"]
ADDRESS = f"http://127.0.0.1:1{PATH}"
WEBHOOK = {"mode": "webhook", "webhook_url": ADDRESS, "webhook_secret": SecretStr(SECRET)}


@asynccontextmanager
async def called(rig: Rig, *, is_standby: bool = False, **seconds: float) -> AsyncIterator[str]:
    """Serve the webhook of a bot; register it with Telegram unless the process is on standby."""
    bot = rig.bot(**WEBHOOK)
    most = dict.fromkeys(("body_timeout_seconds", "store_timeout_seconds"), PATIENCE_SECONDS)
    routes = webhook_routes([bot], rig.intake, **(most | seconds))
    async with serve_http(ConsoleSettings(port=0), [routes]) as address:
        bot._settings.webhook_url = f"{address}{PATH}"
        run = None if is_standby else asyncio.create_task(bot.run(rig.intake))
        try:
            yield address
        finally:
            if run is not None:
                run.cancel()
                await asyncio.wait({run})
            await bot.close()


async def call(
    address: str,
    body: bytes | AsyncIterator[bytes],
    headers: Mapping[str, str] | None = None,
    path: str = PATH,
) -> int:
    given = {HEADER: SECRET} if headers is None else headers
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{address}{path}", data=data, headers=given) as response,
    ):
        assert "Traceback" not in await response.text()
        return response.status


async def test_message_of_a_webhook_call_is_stored(rig: Rig) -> None:
    async with called(rig):
        rig.telegram.say(1, "hello")
        await rig.wait_for_texts("hello")
    [told, *_] = rig.calls("setWebhook")
    assert told["secret_token"] == SECRET
    assert not rig.calls("getUpdates")


async def test_webhook_call_is_repeated_until_the_message_is_stored(rig: Rig) -> None:
    rig.intake.failures = math.inf
    async with called(rig):
        rig.telegram.say(1, "hello")
        await rig.telegram.wait(lambda: rig.intake.failed >= 2)
        rig.intake.failures = 0
        await rig.wait_for_texts("hello")
    statuses = [status for _, status, _ in rig.telegram.wh_log]
    assert statuses[-1] == HTTPStatus.OK
    assert set(statuses[:-1]) == {HTTPStatus.SERVICE_UNAVAILABLE}
    assert rig.intake.texts == ["hello"]


async def test_refused_webhook_is_retried_and_the_error_names_the_setting(rig: Rig) -> None:
    rig.telegram.fault(
        "setWebhook", error_code=400, description="Bad Request: bad webhook", times=2
    )
    with capture_logs() as logs:
        async with called(rig):
            await rig.telegram.wait(lambda: rig.telegram.wh)
    [reason] = [one["reason"] for one in logs if one["event"] == "telegram_disconnected"]
    assert "TROUPE_TELEGRAM__WEBHOOK_URL" in reason
    assert "token" not in reason


async def test_webhook_call_during_a_database_hang_is_stored_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, store = asyncio.Event(), rig.intake.receive

    async def store_late(messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        await goes_on.wait()
        await store(messages, cursors)

    monkeypatch.setattr(rig.intake, "receive", store_late)
    headers = {HEADER: SECRET}
    with capture_logs() as logs:
        async with (
            called(rig, is_standby=True, store_timeout_seconds=0.1) as address,
            aiohttp.ClientSession() as session,
        ):
            for _ in range(2):
                async with session.post(address + PATH, json=GOOD, headers=headers) as response:
                    assert response.status == HTTPStatus.SERVICE_UNAVAILABLE
                    assert response.headers["Retry-After"] == "5"
            goes_on.set()
            await wait_until(lambda: len(rig.intake.events) == 1)
            assert await call(address, json.dumps(GOOD).encode()) == HTTPStatus.OK
    assert [one["event"] for one in logs].count("webhook_call_postponed") == 2
    assert rig.intake.texts == ["hello"]


OUR_CALLS: dict[str, Any] = {
    "no secret": {"headers": {}},
    "wrong secret": {"headers": {HEADER: "wrong"}},
    "prefix of the secret": {"headers": {HEADER: SECRET[:-1]}},
    "non-ASCII secret": {"headers": {HEADER: "é"}},
    "empty secret": {"headers": {HEADER: ""}},
    "secret twice": {"headers": CIMultiDict([(HEADER, SECRET), (HEADER, SECRET)])},
    "secret and another": {"headers": CIMultiDict([(HEADER, SECRET), (HEADER.lower(), "wrong")])},
    "secret under another spelling": {"headers": {HEADER.replace("-", "_"): SECRET}},
    "body of 2 MB": {"body": {"gen": "repeat", "unit": "A", "n": 2**21}},
    "update without update_id": {"body": {"message": {}}},
    "huge integers": {"body": '{"update_id":1e400,"message":{"message_id":99999999999999999999}}'},
    "no JSON": {"body": "{"},
    "nested 100,000 times": {"body": '{"message":' + "[" * 100_000 + "]" * 100_000 + "}"},
    "a list": {"body": "[]"},
    "another path": {"path": "/tg/guess"},
    "the same update twice": {"replay": "same update twice"},
    "database away": {"env": "database refuses"},
    "slow body": {"net": "slowloris"},
}
REQUIRED = {
    "headers": HTTPStatus.UNAUTHORIZED,
    "path": HTTPStatus.NOT_FOUND,
    "replay": HTTPStatus.OK,
    "env": HTTPStatus.SERVICE_UNAVAILABLE,
    "net": HTTPStatus.REQUEST_TIMEOUT,
}


def required_status(given: Mapping[str, Any]) -> HTTPStatus:
    """Return the response status that attacks.json requires for a call."""
    if "body" not in given:
        return REQUIRED[next(iter(given))]
    if isinstance(given["body"], str):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if "gen" in given["body"] else HTTPStatus.OK


async def slow_body() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.sleep(BODY_SECONDS * 10)


@pytest.mark.parametrize(("title", "given"), with_ours("webhook", OUR_CALLS))
async def test_hostile_webhook_call_is_refused(
    rig: Rig, title: str, given: Mapping[str, Any]
) -> None:
    body: bytes | AsyncIterator[bytes] = json.dumps(GOOD).encode()
    match given.get("body"):
        case {"gen": _} as generated:
            body = expanded(generated).encode()
        case str() as text:
            body = text.encode()
        case dict() as update:
            body = json.dumps(update).encode()
        case _:
            pass
    seconds: dict[str, float] = {}
    if "net" in given:
        body, seconds = slow_body(), {"body_timeout_seconds": BODY_SECONDS}
    rig.intake.failures = math.inf if "env" in given else 0
    async with called(rig, is_standby=True, **seconds) as address:
        calls = 2 if "replay" in given else 1
        statuses = {
            await call(address, body, given.get("headers"), given.get("path", PATH))
            for _ in range(calls)
        }
    assert statuses == {required_status(given)}, title
    assert len(rig.intake.events) == int("replay" in given)


@pytest.mark.parametrize(
    "packed", [b"no gzip", gzip.compress(b"{", mtime=0)], ids=["not packed", "no JSON"]
)
async def test_webhook_call_with_a_corrupt_compressed_body_is_refused(
    rig: Rig, packed: bytes
) -> None:
    headers = {HEADER: SECRET, "Content-Encoding": "gzip"}
    async with called(rig, is_standby=True) as address:
        assert await call(address, packed, headers) == HTTPStatus.BAD_REQUEST
        assert await call(address, gzip.compress(json.dumps(GOOD).encode()), headers) == 200
        bomb = gzip.compress(b"a" * 2**22)
        assert await call(address, bomb, headers) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert rig.intake.texts == ["hello"]


@pytest.mark.parametrize("secret", [b"\xff\xe9", b"\xc3\xa9", b"", SECRET.encode()[:-1] + b"\xff"])
def test_secret_with_any_bytes_is_compared_without_an_error(rig: Rig, secret: bytes) -> None:
    """Header bytes that are not UTF-8 become surrogates, which must not raise an error."""
    bot = rig.bot(**WEBHOOK)

    assert not bot.is_authentic_call({HEADER: secret.decode(errors="surrogateescape")})
    assert not bot.is_authentic_call({})
    assert bot.is_authentic_call({HEADER: SECRET})


async def test_unreadable_webhook_calls_are_refused_and_logged(rig: Rig) -> None:
    with capture_logs() as logs:
        async with called(rig, is_standby=True) as address:
            assert await call(address, b"{") == HTTPStatus.BAD_REQUEST
    assert "webhook_call_not_understood" in [one["event"] for one in logs]


def test_webhook_needs_a_url_with_a_path() -> None:
    token = SecretStr("1:x")
    for url in (None, "https://bot.example.org", "https://bot.example.org/"):
        with pytest.raises(ValidationError, match="TROUPE_TELEGRAM__WEBHOOK_URL"):
            TelegramSettings(token=token, mode="webhook", webhook_url=url)


def test_default_secret_is_derived_from_the_token() -> None:
    one, other = (TelegramSettings(token=SecretStr(token)) for token in ("1:x", "1:y"))
    assert one.webhook_token == TelegramSettings(token=SecretStr("1:x")).webhook_token
    assert one.webhook_token != other.webhook_token
    assert "1:x" not in one.webhook_token
