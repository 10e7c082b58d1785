"""Post events to an operator's URL, signed per Standard Webhooks, until they are accepted."""

import asyncio
import base64
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from bot.errors import StoreError
from bot.ports import Clock
from bot.runtime.http_client import ConnectionFailed, HttpClient
from bot.settings import EventWebhookSettings
from bot.storage.events import EventKind, EventLog, EventRow

_log = structlog.get_logger(__name__)
_POLL_SECONDS = 1.0
_REQUEST_TIMEOUT_SECONDS = 15.0
_MAX_BACKOFF_SECONDS = 300.0
_MAX_ROWS_PER_READ = 1000
_REFUSAL_STATUSES = {400, 413, 422}
"""HTTP statuses after which an event is not sent again."""


@dataclass(eq=False)
class EventSender:
    """Sends webhook events, each kind in order; runs in one process at a time."""

    settings: EventWebhookSettings
    events: EventLog
    clock: Clock

    async def run(self) -> None:
        """Send events until cancelled."""
        client = HttpClient(self.settings.url or "", {}, connect_seconds=_REQUEST_TIMEOUT_SECONDS)
        sent_positions: dict[EventKind, float] = {}
        failure_count = 0
        try:
            while True:
                try:
                    sent_positions = sent_positions or await self.events.load_sent_positions()
                    for kind in EventKind:
                        await self._send_newer_events(kind, sent_positions, client)
                    failure_count = 0
                except (StoreError, ConnectionFailed, TimeoutError) as error:
                    failure_count += 1
                    _log.warning("events_not_sent", reason=str(error) or "no answer in time")
                wait_seconds = min(2.0 ** min(failure_count, 10), _MAX_BACKOFF_SECONDS)
                await self.clock.sleep(wait_seconds if failure_count else _POLL_SECONDS)
        finally:
            await client.close()

    async def _send_newer_events(
        self, kind: EventKind, positions: dict[EventKind, float], client: HttpClient
    ) -> None:
        rows = await self.events.load_rows_after(kind, positions[kind], _MAX_ROWS_PER_READ)
        try:
            for row in rows:
                if row.data is not None:
                    await self._send(row, client)
                positions[kind] = row.position
        finally:
            if rows:
                await self.events.advance(kind, positions[kind])

    async def _send(self, row: EventRow, client: HttpClient) -> None:
        event_time = datetime.fromtimestamp(row.at, UTC)
        body = msgspec.json.encode({"type": row.kind, "timestamp": event_time, "data": row.data})
        event_id = f"{await self.events.installation_id()}-{row.kind}-{row.position:.17g}"
        sent_at = str(int(self.clock.now()))
        digest = hmac.digest(self.settings.key, f"{event_id}.{sent_at}.".encode() + body, "sha256")
        headers = {
            "webhook-id": event_id,
            "webhook-timestamp": sent_at,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_SECONDS
        async with await client.request(
            "POST", "", body, deadline, content_type="application/json", headers=headers
        ) as response:
            status = response.status
        if status in _REFUSAL_STATUSES:
            _log.error("event_refused", event_id=event_id, status=status)
        elif status >= 300:
            raise ConnectionFailed(f"the receiver answered with status {status}")
