"""Presets in SQL: all versions of operators' presets, people's characters, and drafts."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from bot.chat.drafts import ImportedFile, PresetDraft
from bot.chat.incoming import to_storable_text
from bot.chat.session import PresetVersion
from bot.storage.database import ClockStore, Store, run_readonly, transaction
from bot.storage.rows import decode, decode_all
from bot.storage.statements import SQL, Unit

_DELETED_CONTENT_HASH = hashlib.sha256(b"").hexdigest()


class PresetVersions(ClockStore):
    @transaction
    def save(self, versions: Sequence[PresetVersion]) -> Unit[Mapping[str, int]]:
        """Store presets, and return version numbers by name; only changed presets get new ones."""
        version_numbers = {}
        for one in versions:
            version_numbers[one.name] = yield from self._save(one)
        return version_numbers

    def _save(self, preset: PresetVersion) -> Unit[int]:
        content_hash = hashlib.sha256(preset.content.encode()).hexdigest()
        row = {"name": preset.name, "sha256": content_hash, "content": preset.content}
        owner_values = {"owner": preset.owner}
        while True:
            newest_rows = yield SQL["newest_preset"].query(row)
            if newest_rows and newest_rows[0][1] == content_hash:
                return int(newest_rows[0][0])
            number = max(preset.version, newest_rows[0][0] + 1 if newest_rows else 1)
            # Another process may take the number at the same time, so the loop checks again.
            version_values = {"version": number, "first_seen_at": self._clock.now()}
            yield SQL["add_preset"].query({**row, **version_values, **owner_values})
            if preset.owner is not None:
                yield SQL["drop_old_versions"].query(name=preset.name, newest=number)

    @run_readonly
    def newest(self, name: str) -> Unit[PresetVersion | None]:
        """Return the newest version of a preset, or None if it was never stored."""
        rows = yield SQL["newest_preset"].query_alone(name=name)
        return decode(lambda row: PresetVersion(name, row[2], row[0]), rows[0]) if rows else None

    @transaction
    def delete(self, name: str) -> Unit[None]:
        """Delete all versions of a person's or server's character."""
        yield SQL["drop_character"].query(name=name)

    @run_readonly
    def picture_urls(self) -> Unit[frozenset[str]]:
        """Return the picture URLs of all characters that were created in chats."""
        rows = yield SQL["characters"].query_alone()
        settings = decode_all("setting", rows, lambda row: str(row[0]))
        return frozenset(one.rpartition("\t")[2] for one in settings)

    @run_readonly
    def find(self, name: str, version: int) -> Unit[PresetVersion | None]:
        rows = yield SQL["preset_content"].query_alone(name=name, version=version)
        return decode(lambda row: PresetVersion(name, row[0], version), rows[0]) if rows else None

    @run_readonly
    def history(self, name: str, limit: int) -> Unit[Sequence[tuple[int, float]]]:
        """Return version numbers and their first use in Unix seconds, newest first."""
        rows = yield SQL["preset_history"].query_alone(
            name=name, deleted=_DELETED_CONTENT_HASH, most=limit
        )
        return [(version, first_seen_at) for version, first_seen_at in rows]


class PresetDrafts(Store):
    """Stores drafts of presets, one per preset name."""

    @run_readonly
    def all(self) -> Unit[Sequence[PresetDraft]]:
        """Return all drafts, ordered by name, without their imported files."""
        rows = yield SQL["drafts"].query_alone()
        return [decode(lambda row: PresetDraft(*row), row) for row in rows]

    @run_readonly
    def find(self, name: str) -> Unit[PresetDraft | None]:
        rows = yield SQL["draft"].query_alone(name=to_storable_text(name))
        return decode(_to_draft, rows[0]) if rows else None

    @transaction
    def save(self, draft: PresetDraft) -> Unit[bool]:
        """Store a draft; return False if its revision does not follow the stored revision."""
        source = draft.source
        row = {
            "name": draft.name,
            "base_version": draft.base_version,
            "revision": draft.revision,
            "content": to_storable_text(draft.content),
            "updated_at": draft.updated_at,
            "source_name": source and to_storable_text(source.name),
            "source": source and source.content,
        }
        name = "add_draft" if draft.revision == 1 else "update_draft"
        return bool((yield SQL[name].query(row)))

    @transaction
    def delete(self, name: str) -> Unit[bool]:
        """Delete a draft; return False if there was none."""
        return bool((yield SQL["delete_draft"].query(name=to_storable_text(name))))


def _to_draft(row: Sequence[Any]) -> PresetDraft:
    name, version, revision, draft_content, updated_at, source_name, source_content = row
    source = None if source_content is None else ImportedFile(source_name or "", source_content)
    return PresetDraft(name, version, revision, draft_content, updated_at, source)
