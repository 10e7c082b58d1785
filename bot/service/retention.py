"""Jobs that run for as long as the service: settle abandoned sends, delete expired rows."""

import structlog

from bot.errors import StoreError
from bot.ports import Clock, Outbox
from bot.settings import Settings
from bot.storage.sql.database import Database
from bot.storage.sql.retention import delete_expired

_log = structlog.get_logger(__name__)
_ABANDONED_SECONDS = 30.0  # a request takes at most 10 s, so the sender of such a row is gone
_DELETE_EVERY_SECONDS = 3600.0


class RetentionJobs:
    """Keeps the outbox moving and the database from growing."""

    def __init__(
        self, database: Database, outbox: Outbox, settings: Settings, clock: Clock
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._settings = settings
        self._clock = clock

    async def settle_sends_of_last_run(self) -> None:
        """Settle what was being sent when the last process ended.

        On SQLite this process holds the lock of the data directory, so that nobody else can be
        sending; on PostgreSQL other senders may be at work.
        """
        await self._settle_sends(0 if self._database.is_sqlite else _ABANDONED_SECONDS)

    async def settle_abandoned_sends(self) -> None:
        """Settle, again and again, what the senders of dead processes left behind."""
        while True:
            await self._clock.sleep(_ABANDONED_SECONDS / 3)
            try:
                await self._settle_sends(_ABANDONED_SECONDS)
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def delete_expired_rows(self) -> None:
        """Delete, every hour, the rows that have outlived their retention time."""
        while True:
            await self._clock.sleep(_DELETE_EVERY_SECONDS)
            try:
                rows = await delete_expired(
                    self._database, self._clock, self._settings.receipt_days
                )
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            else:
                _log.info("expired_rows_deleted", rows=rows)

    async def _settle_sends(self, older_than_seconds: float) -> None:
        await self._outbox.expire_sending(
            older_than_seconds=older_than_seconds,
            settle_seconds=self._settings.delivery.settle_seconds,
        )
