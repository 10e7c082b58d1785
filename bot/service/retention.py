"""Jobs that run for as long as the service: delete expired rows."""

import structlog

from bot.errors import StoreError
from bot.ports import Clock
from bot.settings import Settings
from bot.storage.sql.database import Database
from bot.storage.sql.retention import delete_expired

_log = structlog.get_logger(__name__)
_DELETE_EVERY_SECONDS = 3600.0


class RetentionJobs:
    """Keeps the database from growing."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock

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
