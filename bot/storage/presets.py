"""Presets in SQL: their versions, of which none is deleted, and the drafts that people work on.

Who saves a draft that another one has replaced is told so.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, select

from bot.chat.drafts import ImportedFile, PresetDraft
from bot.chat.session import PresetVersion
from bot.chat.storable import make_storable
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.tables import preset_draft, preset_version, upsert

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


class SqlPresetVersions:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def save(self, versions: Sequence[PresetVersion]) -> Mapping[str, int]:
        """Store the current presets; return their version numbers by name.

        A preset whose content equals its newest version keeps that number.
        """
        now = self._clock.now()

        def unit(connection: Connection) -> dict[str, int]:
            return {one.name: _save_version(connection, one, now) for one in versions}

        return await self._database.write(unit)

    async def newest(self, name: str) -> PresetVersion | None:
        """Return the newest version, None if the service never started with such a preset."""
        row = await self._database.read(
            lambda connection: connection.execute(_NEWEST, {"preset_name": name}).one_or_none()
        )
        return PresetVersion(name, row.content, row.version) if row else None

    async def find(self, name: str, version: int) -> PresetVersion | None:
        """Return a version; None if there is no such one."""
        asked = {"preset_name": name, "number": version}
        content = await self._database.read(
            lambda connection: connection.execute(_CONTENT, asked).scalar_one_or_none()
        )
        return None if content is None else PresetVersion(name, content, version)

    async def history(self, name: str, limit: int) -> Sequence[tuple[int, float]]:
        """Return the newest numbers, newest first, and when each was first seen (Unix seconds)."""
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


_WITHOUT_FILES = select(
    *(preset_draft.c.name, preset_draft.c.base_version, preset_draft.c.revision),
    *(preset_draft.c.content, preset_draft.c.updated_at),
).order_by(preset_draft.c.name)
_BY_NAME = select(preset_draft).where(preset_draft.c.name == bindparam("of"))
_INSERT_DRAFT = upsert(preset_draft, lambda insert: insert.on_conflict_do_nothing())
_UPDATE = (
    preset_draft.update()
    .where(preset_draft.c.name == bindparam("of"), preset_draft.c.revision == bindparam("after"))
    .values(
        base_version=bindparam("new_base"),
        revision=bindparam("new_revision"),
        content=bindparam("new_content"),
        updated_at=bindparam("now"),
        source_name=bindparam("new_source_name"),
        source=bindparam("new_source"),
    )
)
_DELETE = delete(preset_draft).where(preset_draft.c.name == bindparam("of"))


class SqlPresetDrafts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Sequence[PresetDraft]:
        """Return every draft by name, without the files that they were imported from."""
        rows = await self._database.read(lambda c: c.execute(_WITHOUT_FILES).all())
        return [PresetDraft(*row) for row in rows]

    async def find(self, name: str) -> PresetDraft | None:
        asked = {"of": make_storable(name)}
        row = await self._database.read(lambda c: c.execute(_BY_NAME, asked).one_or_none())
        return _to_draft(row) if row else None

    async def save(self, draft: PresetDraft) -> bool:
        """Store a draft if its revision follows the stored one; return whether it was stored.

        The first revision is 1.
        """
        return await self._database.write(lambda c: _save(c, draft))

    async def delete(self, name: str) -> bool:
        """Return whether there was one."""
        asked = {"of": make_storable(name)}
        return bool(await self._database.write(lambda c: c.execute(_DELETE, asked).rowcount))


def _save(connection: Connection, draft: PresetDraft) -> bool:
    source = draft.source
    values: dict[str, Any] = {
        "name": draft.name,
        "base_version": draft.base_version,
        "revision": draft.revision,
        "content": make_storable(draft.content),
        "updated_at": draft.updated_at,
        "source_name": source and make_storable(source.name),
        "source": source and source.content,
    }
    if draft.revision == 1:
        return connection.execute(_INSERT_DRAFT[connection.dialect.name], values).rowcount == 1
    changed = {
        "of": draft.name,
        "after": draft.revision - 1,
        "new_base": draft.base_version,
        "new_revision": draft.revision,
        "new_content": values["content"],
        "now": draft.updated_at,
        "new_source_name": values["source_name"],
        "new_source": values["source"],
    }
    return connection.execute(_UPDATE, changed).rowcount == 1


def _to_draft(row: Row[Any]) -> PresetDraft:
    source = None if row.source is None else ImportedFile(row.source_name or "", row.source)
    return PresetDraft(
        row.name, row.base_version, row.revision, row.content, row.updated_at, source
    )
