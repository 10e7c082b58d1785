"""The HTTP server of a process: console, health checks, metrics, and webhooks on one port."""

import asyncio
import contextlib
import errno
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias, cast

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from bot.errors import PlatformError, SettingsError, StoreError, TroupeError
from bot.ports import Intake, WebhookReceiver
from bot.runtime.header_timeout import HeaderTimeout
from bot.runtime.tasks import cancel_and_wait, wait_or_abandon
from bot.settings import ConsoleSettings

_log = structlog.get_logger(__name__)
_PORTS_TO_TRY = 20
_MAX_BODY_BYTES = 20 * 2**20
_LISTEN_BACKLOG = 128
_KEEP_ALIVE_SECONDS = 75.0
"""How long a connection may idle before its next request; proxies reuse connections for 60 s."""
RouteAdder: TypeAlias = Callable[[web.Application], None]


@contextlib.asynccontextmanager
async def serve_http(
    settings: ConsoleSettings,
    route_adders: Iterable[RouteAdder],
    *,
    may_change_port: bool = False,
    header_timeout_seconds: float = 10.0,
) -> AsyncIterator[str]:
    """Serve HTTP during the block, and yield the server's address.

    If the port is in use, the next free port is used, provided that no port is set or
    `may_change_port` is true. Raises `SettingsError` if the port cannot be used, or the certificate
    is unreadable. The head of the first request must arrive within `header_timeout_seconds`.
    """
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    for add_routes in route_adders:
        add_routes(app)
    tls = _make_tls_context(settings)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=1, keepalive_timeout=_KEEP_ALIVE_SECONDS
    )
    await runner.setup()
    web_server = cast("web.Server", runner.server)
    try:
        may_change_port = may_change_port or "port" not in settings.model_fields_set
        make_protocol = partial(HeaderTimeout, web_server, header_timeout_seconds)
        server = await _listen(make_protocol, settings, tls, may_change_port=may_change_port)
        try:
            host, port = server.sockets[0].getsockname()[:2]
            yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


def _make_tls_context(settings: ConsoleSettings) -> ssl.SSLContext | None:
    """Return the TLS context for HTTPS, or None if the server uses plain HTTP."""
    if settings.tls_certificate is None or settings.tls_key is None:  # settings: both or neither
        return None
    tls_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls_context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:
        raise SettingsError(
            f"TROUPE_CONSOLE__TLS_CERTIFICATE: {settings.tls_certificate} and its key cannot be"
            f" used ({error.strerror or error})"
        ) from None
    return tls_context


async def _listen(
    make_protocol: Callable[[], asyncio.Protocol],
    settings: ConsoleSettings,
    tls_context: ssl.SSLContext | None,
    *,
    may_change_port: bool,
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    ports = (*range(settings.port + 1, settings.port + _PORTS_TO_TRY), 0) if may_change_port else ()
    for port in (settings.port, *ports):
        try:
            return await loop.create_server(
                make_protocol, settings.host, port, ssl=tls_context, backlog=_LISTEN_BACKLOG
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port != 0 and may_change_port:
                continue
            raise SettingsError(
                f"cannot listen on {settings.host}:{port} ({error.strerror}); "
                "set TROUPE_CONSOLE__PORT to a free port, or to 0 for any free port"
            ) from None
    raise AssertionError("unreachable: port 0 is never in use")


_ADDRESS_FILE = "console-address"


@contextlib.contextmanager
def publish_console_address(data_dir: Path, address: str) -> Iterator[None]:
    file = data_dir / _ADDRESS_FILE
    file.write_text(address, encoding="utf-8")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def find_console_address(data_dir: Path) -> str | None:
    """Return the address of this data directory's console; None if no console runs."""
    try:
        return (data_dir / _ADDRESS_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


ListNotices = Callable[[], Iterable[str]]
"""Returns what operators should know even though the service works."""
Probe = Callable[[], Awaitable[str | None]]
"""Returns None if a part of the service works, or else the reason in a few words."""


def make_health_routes(
    probes: Mapping[str, Probe],
    *,
    list_notices: ListNotices = tuple,
    probe_timeout_seconds: float = 2.0,
) -> RouteAdder:
    async def report_readiness(_: web.Request) -> web.Response:
        answers = await run_probes(probes, probe_timeout_seconds)
        is_ready = all(answer == "ok" for answer in answers.values())
        report = {"ready": is_ready, "parts": answers, "notices": list(list_notices())}
        return web.json_response(report, status=200 if is_ready else 503)

    def add_routes(app: web.Application) -> None:
        app.router.add_get("/healthz", _report_liveness)
        app.router.add_get("/readyz", report_readiness)
        app.router.add_get("/metrics", _send_metrics)

    return add_routes


async def run_probes(probes: Mapping[str, Probe], seconds: float) -> Mapping[str, str]:
    """Return each probe's result: "ok" or the problem."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            name: group.create_task(_run_probe(probe, seconds)) for name, probe in probes.items()
        }
    return {name: task.result() for name, task in tasks.items()}


async def _report_liveness(_: web.Request) -> web.Response:
    return web.json_response({"alive": True})


async def _run_probe(probe: Probe, seconds: float) -> str:
    try:
        return await wait_or_abandon(seconds, probe()) or "ok"
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except TroupeError as error:
        return type(error).__name__  # the error's text may contain an address


async def _send_metrics(_: web.Request) -> web.Response:
    headers = {"Content-Type": CONTENT_TYPE_LATEST}
    return web.Response(body=generate_latest(REGISTRY), headers=headers)


_MAX_CALL_BYTES = 2**20
_RETRY_AFTER_SECONDS = 5
_STORE_TIMEOUT_SECONDS = 10.0
"""The time limit for storing a webhook's call; Telegram itself waits much longer."""
# The body is not encoded as its headers say, or the head of a multipart part is unreadable.
UNREADABLE_BODY_ERRORS = (web.RequestPayloadError, HttpProcessingError)


def webhook_routes(
    receivers: Iterable[WebhookReceiver],
    intake: Intake,
    *,
    body_timeout_seconds: float = 10.0,
    store_timeout_seconds: float = _STORE_TIMEOUT_SECONDS,
) -> RouteAdder:
    """Return webhook routes, which respond with 200 once a call is stored, or else with 503."""

    def add_routes(app: web.Application) -> None:
        for receiver in receivers:
            if receiver.webhook_path is not None:
                webhook = _WebhookEndpoint(
                    receiver, intake, body_timeout_seconds, store_timeout_seconds
                )
                app.router.add_post(receiver.webhook_path, webhook.handle_call)
                app.cleanup_ctx.append(webhook.cancel_at_shutdown)

    return add_routes


@dataclass(slots=True, eq=False)
class _WebhookEndpoint:
    receiver: WebhookReceiver
    intake: Intake
    body_timeout_seconds: float
    store_timeout_seconds: float
    store_tasks: set[asyncio.Task[bool]] = field(default_factory=set)

    async def cancel_at_shutdown(self, _: web.Application) -> AsyncIterator[None]:
        """At shutdown, cancel calls that are still being stored; the platform sends them again."""
        yield
        await cancel_and_wait(self.store_tasks)

    async def handle_call(self, request: web.Request) -> web.Response:
        if (request.content_length or 0) > _MAX_CALL_BYTES:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if not self.receiver.is_authentic_call(_drop_repeated_headers(request.headers)):
            return web.Response(status=HTTPStatus.UNAUTHORIZED)
        try:
            async with asyncio.timeout(self.body_timeout_seconds):
                body = await request.clone(client_max_size=_MAX_CALL_BYTES).read()
        except TimeoutError:
            return web.Response(status=HTTPStatus.REQUEST_TIMEOUT)
        except UNREADABLE_BODY_ERRORS:
            return web.Response(status=HTTPStatus.BAD_REQUEST)
        return await self._store_call(body)

    async def _store_call(self, body: bytes) -> web.Response:
        store_task = asyncio.create_task(self.receiver.receive_call(body, self.intake))
        self.store_tasks.add(store_task)
        store_task.add_done_callback(self.store_tasks.discard)
        done_tasks, _ = await asyncio.wait({store_task}, timeout=self.store_timeout_seconds)
        if not done_tasks:
            return _postpone_call(f"it was not stored within {self.store_timeout_seconds:g} s")
        try:
            is_valid_call = store_task.result()
        except (StoreError, PlatformError) as error:
            return _postpone_call(str(error))
        if not is_valid_call:
            _log.warning("webhook_call_not_understood", bytes=len(body))
        return web.Response(status=HTTPStatus.OK if is_valid_call else HTTPStatus.BAD_REQUEST)


def _postpone_call(reason: str) -> web.Response:
    _log.warning("webhook_call_postponed", reason=reason)
    headers = {"Retry-After": str(_RETRY_AFTER_SECONDS)}
    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)


def _drop_repeated_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Drop headers that occur more than once: a proxy may have checked a different value."""
    counts = Counter(name.lower() for name, _ in headers.items())
    return CIMultiDict((name, value) for name, value in headers.items() if counts[name.lower()] < 2)
