"""Versions of presets in SQL: an edited preset gets a new version, and none is deleted."""

import hashlib
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select
from typing_extensions import override

from bot.chat.session import PresetVersion
from bot.ports import Clock, PresetVersions
from bot.storage.sql.database import Database
from bot.storage.sql.tables import preset_version, upsert

_NEWEST = (
    select(preset_version.c.version, preset_version.c.sha256, preset_version.c.content)
    .where(preset_version.c.name == bindparam("preset_name"))
    .order_by(preset_version.c.version.desc())
    .limit(1)
)
_CONTENT = select(preset_version.c.content).where(
    preset_version.c.name == bindparam("preset_name"),
    preset_version.c.version == bindparam("number"),
)
_DELETED = hashlib.sha256(b"").hexdigest()
_HISTORY = (
    select(preset_version.c.version, preset_version.c.first_seen_at)
    .where(preset_version.c.name == bindparam("preset_name"), preset_version.c.sha256 != _DELETED)
    .order_by(preset_version.c.version.desc())
    .limit(bindparam("most"))
)
_INSERT = upsert(preset_version, lambda insert: insert.on_conflict_do_nothing())


class SqlPresetVersions(PresetVersions):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def save(self, versions: Sequence[PresetVersion]) -> Mapping[str, int]:
        now = self._clock.now()

        def unit(connection: Connection) -> dict[str, int]:
            return {one.name: _save_version(connection, one, now) for one in versions}

        return await self._database.write(unit)

    @override
    async def newest(self, name: str) -> PresetVersion | None:
        row = await self._database.read(
            lambda connection: connection.execute(_NEWEST, {"preset_name": name}).one_or_none()
        )
        return PresetVersion(name, row.content, row.version) if row else None

    @override
    async def find(self, name: str, version: int) -> PresetVersion | None:
        asked = {"preset_name": name, "number": version}
        content = await self._database.read(
            lambda connection: connection.execute(_CONTENT, asked).scalar_one_or_none()
        )
        return None if content is None else PresetVersion(name, content, version)

    @override
    async def history(self, name: str, limit: int) -> Sequence[tuple[int, float]]:
        asked = {"preset_name": name, "most": limit}
        rows = await self._database.read(lambda c: c.execute(_HISTORY, asked).all())
        return [(row.version, row.first_seen_at) for row in rows]


def _save_version(connection: Connection, preset: PresetVersion, now: float) -> int:
    sha256 = hashlib.sha256(preset.content.encode()).hexdigest()
    while True:
        newest = connection.execute(_NEWEST, {"preset_name": preset.name}).one_or_none()
        if newest is not None and newest.sha256 == sha256:
            return int(newest.version)
        row = {
            "name": preset.name,
            "version": max(preset.version, newest.version + 1 if newest else 1),
            "sha256": sha256,
            "content": preset.content,
            "first_seen_at": now,
        }
        # A process that starts at the same time may have taken the number: then try again.
        connection.execute(_INSERT[connection.dialect.name], row)
