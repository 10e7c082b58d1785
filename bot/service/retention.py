"""Jobs that run for as long as the service: delete expired rows, encrypt old texts."""

import structlog

from bot.errors import StoreError
from bot.ports import Clock
from bot.settings import Settings
from bot.storage.encryption.conversion import convert_texts
from bot.storage.expired_turns import delete_expired_turns
from bot.storage.sql.database import Database
from bot.storage.sql.retention import delete_expired

_log = structlog.get_logger(__name__)
_DELETE_AFTER_SECONDS = 300.0
"""After the start: a service that is restarted every hour deletes as well."""
_DELETE_EVERY_SECONDS = 3600.0
_ENCRYPT_AFTER_SECONDS = 60.0
_ENCRYPT_EVERY_SECONDS = 86_400.0
_PAUSE_SECONDS = 0.05
"""Between two pages of texts that are encrypted, so that messages come before."""


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


class OldTexts:
    """Encrypts what was stored before TROUPE_ENCRYPT_TEXTS was set, or with an older data key."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def encrypt(self) -> None:
        """Do so soon after the start, and look again once a day."""
        await self._clock.sleep(_ENCRYPT_AFTER_SECONDS)
        while True:
            try:
                rows = await self.encrypt_once()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            else:
                if rows:
                    _log.info("old_texts_encrypted", rows=rows)
            await self._clock.sleep(_ENCRYPT_EVERY_SECONDS)

    async def encrypt_once(self) -> int:
        """Look at every text; return how many rows were changed.

        Raises:
            StoreError: the database failed, or others store texts unencrypted meanwhile.
        """
        return await convert_texts(self._database, _report_nothing, self._pause)

    async def _pause(self) -> None:
        await self._clock.sleep(_PAUSE_SECONDS)


def _report_nothing(_table: str, _rows: int) -> None:
    """Leave the progress out: it is nobody's."""
