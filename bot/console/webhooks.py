"""Webhooks: the HTTP endpoints that platforms call with new messages."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict

from bot.console.server import AddRoutes
from bot.errors import PlatformError, StoreError
from bot.ports import Intake, WebhookReceiver
from bot.runtime.tasks import cancel_and_wait

_log = structlog.get_logger(__name__)
_MAX_BODY_BYTES = 2**20
_RETRY_AFTER_SECONDS = 5
_STORE_SECONDS = 10.0
"""Telegram gives up a call much later."""
# A body that is not packed as its headers say.
_UNREADABLE = (web.RequestPayloadError, HttpProcessingError)


def webhook_routes(
    receivers: Iterable[WebhookReceiver],
    intake: Intake,
    *,
    body_seconds: float = 10.0,
    store_seconds: float = _STORE_SECONDS,
) -> AddRoutes:
    """Return the routes of the platforms' webhooks.

    A call is answered with 200 once it is committed, and with 503 if it cannot be stored or that
    takes too long. A slow database stores it in the end; a repeated call is dropped by its key.
    """

    def add_routes(app: web.Application) -> None:
        for receiver in receivers:
            if receiver.webhook_path is not None:
                webhook = _WebhookEndpoint(receiver, intake, body_seconds, store_seconds)
                app.router.add_post(receiver.webhook_path, webhook.answer)
                app.cleanup_ctx.append(webhook.running)

    return add_routes


class _WebhookEndpoint:
    def __init__(
        self,
        receiver: WebhookReceiver,
        intake: Intake,
        body_seconds: float,
        store_seconds: float,
    ) -> None:
        self._receiver = receiver
        self._intake = intake
        self._body_seconds = body_seconds
        self._store_seconds = store_seconds
        self._storing: set[asyncio.Task[bool]] = set()
        self._is_understood = True  # of the last call; a series of failures is logged once

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """End what is still being stored when the server ends: the platform calls again."""
        yield
        await cancel_and_wait(self._storing)

    async def answer(self, request: web.Request) -> web.Response:
        if (request.content_length or 0) > _MAX_BODY_BYTES:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if not self._receiver.admits_call(_given_once(request.headers)):
            return web.Response(status=HTTPStatus.UNAUTHORIZED)
        try:
            async with asyncio.timeout(self._body_seconds):
                body = await _read(request)
        except TimeoutError:
            return web.Response(status=HTTPStatus.REQUEST_TIMEOUT)
        except _UNREADABLE:
            return web.Response(status=HTTPStatus.BAD_REQUEST)
        if body is None:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return await self._store(body)

    async def _store(self, body: bytes) -> web.Response:
        storing = asyncio.create_task(self._receiver.receive_call(body, self._intake))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        done, _ = await asyncio.wait({storing}, timeout=self._store_seconds)
        if not done:
            storing.add_done_callback(_log_late_end)
            return _postponed(f"nothing was stored within {self._store_seconds:g} s")
        try:
            understood = storing.result()
        except (StoreError, PlatformError) as error:
            return _postponed(str(error))
        if not understood and self._is_understood:
            _log.warning("webhook_call_not_understood", bytes=len(body))
        self._is_understood = understood
        return web.Response(status=HTTPStatus.OK if understood else HTTPStatus.BAD_REQUEST)


def _postponed(reason: str) -> web.Response:
    _log.warning("webhook_call_postponed", reason=reason)
    retry = {"Retry-After": str(_RETRY_AFTER_SECONDS)}
    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, headers=retry)


def _log_late_end(storing: asyncio.Task[bool]) -> None:
    """Log how a call ended that was already answered with 503."""
    if storing.cancelled():
        return
    try:
        storing.result()
    except (StoreError, PlatformError) as error:
        _log.info("webhook_call_not_stored", reason=str(error))
    else:
        _log.info("webhook_call_stored_late")


def _given_once(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Leave out repeated headers: a proxy may have checked the other one."""
    counts = Counter(name.lower() for name, _ in headers.items())
    return CIMultiDict((name, value) for name, value in headers.items() if counts[name.lower()] < 2)


async def _read(request: web.Request) -> bytes | None:
    """Return the body of a request; None if it is too long."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            return None
    return bytes(body)
