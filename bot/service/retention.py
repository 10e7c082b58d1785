"""Delete expired rows for as long as the service runs."""

import structlog

from bot.errors import StoreError
from bot.ports import Clock
from bot.settings import Settings
from bot.storage.expired_turns import delete_expired_turns
from bot.storage.sql.database import Database
from bot.storage.sql.retention import delete_expired

_log = structlog.get_logger(__name__)
_DELETE_AFTER_SECONDS = 300.0
"""After the start: a service that is restarted every hour deletes as well."""
_DELETE_EVERY_SECONDS = 3600.0


class RetentionJobs:
    """Keeps the database from growing."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock

    async def delete_expired_rows(self) -> None:
        """Delete, every hour, the rows that have outlived their retention time."""
        await self._clock.sleep(_DELETE_AFTER_SECONDS)
        while True:
            try:
                rows = await self.delete_once()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            else:
                _log.info("expired_rows_deleted", rows=rows)
            await self._clock.sleep(_DELETE_EVERY_SECONDS)

    async def delete_once(self) -> int:
        """Delete what has expired now; return how many rows that was.

        Raises:
            StoreError: the database failed.
        """
        days, receipt_days = self._settings.history_days, self._settings.kept_receipt_days
        rows = await delete_expired(self._database, self._clock, receipt_days)
        if days is None:
            return rows
        return rows + await delete_expired_turns(self._database, self._clock, days)
