"""The versions of presets: an edit makes a new one, and none is ever lost."""

import hashlib
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select
from typing_extensions import override

from bot.chat.session import PresetVersion
from bot.ports import Clock, PresetVersions
from bot.storage.sql.database import Database
from bot.storage.sql.tables import preset_version
from bot.storage.sql.upserts import upsert

_NEWEST = (
    select(preset_version.c.version, preset_version.c.sha256, preset_version.c.content)
    .where(preset_version.c.name == bindparam("wanted"))
    .order_by(preset_version.c.version.desc())
    .limit(1)
)
_KEEP = upsert(preset_version, lambda insert: insert.on_conflict_do_nothing())


class SqlPresetVersions(PresetVersions):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def save(self, editions: Sequence[PresetVersion]) -> Mapping[str, int]:
        now = self._clock.now()

        def unit(connection: Connection) -> dict[str, int]:
            return {one.name: _number(connection, one, now) for one in editions}

        return await self._database.write(unit)

    @override
    async def newest(self, name: str) -> PresetVersion | None:
        row = await self._database.read(
            lambda connection: connection.execute(_NEWEST, {"wanted": name}).one_or_none()
        )
        return PresetVersion(name, row.content, row.version) if row else None


def _number(connection: Connection, edition: PresetVersion, now: float) -> int:
    sha256 = hashlib.sha256(edition.content.encode()).hexdigest()
    while True:
        newest = connection.execute(_NEWEST, {"wanted": edition.name}).one_or_none()
        if newest is not None and newest.sha256 == sha256:
            return int(newest.version)
        row = {
            "name": edition.name,
            "version": max(edition.version, newest.version + 1 if newest else 1),
            "sha256": sha256,
            "content": edition.content,
            "first_seen_at": now,
        }
        # Another process that starts just now may have taken the number: then look again.
        connection.execute(_KEEP[connection.dialect.name], row)
