"""Drafts of presets in SQL; who saves an edition that another one has replaced is told so."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, select
from typing_extensions import override

from bot.chat.console.preset_draft import ImportedFile, PresetDraft
from bot.chat.storable import make_storable
from bot.ports import PresetDrafts
from bot.storage.sql.database import Database
from bot.storage.sql.tables import preset_draft, upsert

_WITHOUT_FILES = select(
    *(preset_draft.c.name, preset_draft.c.base_version, preset_draft.c.revision),
    *(preset_draft.c.content, preset_draft.c.updated_at),
).order_by(preset_draft.c.name)
_BY_NAME = select(preset_draft).where(preset_draft.c.name == bindparam("of"))
_INSERT = upsert(preset_draft, lambda insert: insert.on_conflict_do_nothing())
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


class SqlPresetDrafts(PresetDrafts):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def all(self) -> Sequence[PresetDraft]:
        rows = await self._database.read(lambda c: c.execute(_WITHOUT_FILES).all())
        return [PresetDraft(*row) for row in rows]

    @override
    async def find(self, name: str) -> PresetDraft | None:
        asked = {"of": make_storable(name)}
        row = await self._database.read(lambda c: c.execute(_BY_NAME, asked).one_or_none())
        return _to_draft(row) if row else None

    @override
    async def save(self, draft: PresetDraft) -> bool:
        return await self._database.write(lambda c: _save(c, draft))

    @override
    async def delete(self, name: str) -> bool:
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
        return connection.execute(_INSERT[connection.dialect.name], values).rowcount == 1
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
