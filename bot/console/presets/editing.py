"""Preset drafts: open, check and save."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from urllib.parse import quote

from bot.chat.drafts import ImportedFile, PresetDraft
from bot.console.differences import find_edits
from bot.console.presets.form import apply_form, write_preset_json
from bot.console.presets.lorebook_entries import FIELD_PREFIX, apply_entry_forms
from bot.errors import RequestRefused, UserError
from bot.importers.card import card_file
from bot.importers.character_files import merge_character_file
from bot.importers.png import SIGNATURE
from bot.ports import Clock
from bot.prompting.presets.fields import find_name_problem, preset_id
from bot.prompting.presets.files import (
    CheckedPreset,
    PresetProblem,
    check_preset,
    load_preset_lorebook,
    read_lorebook_file,
)
from bot.prompting.presets.preset import Preset
from bot.prompting.text.confusables import confusable_skeleton
from bot.prompting.text.jsonc import JsonDocument
from bot.routing.presets import PresetResolver
from bot.storage.operation import AuditLog
from bot.storage.presets import PresetDrafts, PresetVersions
from bot.texts.text import translatable
from bot.value_class import value_class

MAX_CONTENT_CHARS = 4_000_000
"""The maximum length of a draft in characters, including any lorebook in it."""
_MAX_AUDIT_CHARS = 4000
_MAX_CHARS_CHECKED_AT_ONCE = 20_000  # takes about 10 ms


@value_class
class EditedPreset:
    name: str
    version: int
    """The number of the newest published version; 0 if it was never published."""
    published_text: str
    """The text of the newest published version; empty if there is none."""
    draft: PresetDraft | None

    @property
    def content(self) -> str:
        return self.published_text if self.draft is None else self.draft.content

    @property
    def draft_revision(self) -> int:
        """The draft's revision; 0 without a draft."""
        return 0 if self.draft is None else self.draft.revision


@value_class
class ListedPreset:
    name: str
    version: int | None
    """The newest published version; None if it was never published."""
    character: str
    description: str
    provider: str
    model: str
    has_draft: bool
    is_default: bool
    is_character: bool
    picture: str
    """The path of its card's picture; empty if it has none."""

    @property
    def searchable_text(self) -> str:
        return f"{self.name}\n{self.character}\n{self.description}".casefold()


@value_class
class PresetEditor:
    """Reads, checks and saves the presets that are edited in the console."""

    resolver: PresetResolver
    versions: PresetVersions
    drafts: PresetDrafts
    audit_log: AuditLog
    clock: Clock
    find_unsupported_parameters: Callable[[Preset], Sequence[str]]
    """Returns a line for each parameter that one of the preset's providers does not support."""
    open_folder: Callable[[], Path]
    """Returns the folder that presets are written to; raises `UserError`."""
    prepare_preset: Callable[[Preset], Preset]
    """Prepares the model of a preset, and returns the preset as this process uses it; raises
    `SettingsError` if its provider is not set up or refuses its parameters."""
    announce_presets: Callable[[Sequence[str]], Awaitable[None]]
    _long_check_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))

    async def list_presets(self) -> Sequence[ListedPreset]:
        """Return all published presets, and drafts that were never published, sorted by name."""
        draft_names = {one.name for one in await self.drafts.all()}
        names = sorted(draft_names | self.resolver.presets.keys(), key=str.casefold)
        return [self._to_listed_preset(name, has_draft=name in draft_names) for name in names]

    def find_picture_file(self, name: str) -> Path | None:
        """Return the file of a preset's character card if it is a PNG, or else None."""
        with contextlib.suppress(KeyError, UserError, OSError):
            file = card_file(self.open_folder(), self.resolver.presets[name])
            with file.open("rb") as stream:
                return file if stream.read(len(SIGNATURE)) == SIGNATURE else None
        return None

    def find_picture_path(self, name: str) -> str:
        file = self.find_picture_file(name)
        return "" if file is None else f"/presets/{quote(name, safe='')}/picture"

    def _to_listed_preset(self, name: str, *, has_draft: bool) -> ListedPreset:
        preset = self.resolver.presets.get(name)
        return ListedPreset(
            name,
            self.resolver.versions.get(name),
            preset.character_name if preset else name,
            preset.description if preset else "",
            preset.provider if preset else "",
            preset.model if preset else "",
            has_draft,
            is_default=name == self.resolver.default_preset.name,
            is_character=preset is None or preset.is_character,
            picture=self.find_picture_path(name),
        )

    async def open_preset(self, name: str) -> EditedPreset:
        """Return a preset for editing; raises `RequestRefused` with 404 if there is none."""
        draft = await self.drafts.find(name)
        newest = await self.versions.newest(name) if name in self.resolver.presets else None
        if newest is not None:
            return EditedPreset(name, newest.version, newest.content, draft)
        if draft is not None:
            return EditedPreset(name, 0, "", draft)
        raise RequestRefused(404, translatable("There is no preset with this name."))

    async def read_version_text(self, name: str, number: int) -> str:
        """Return a version's text; raises `RequestRefused` with 404 if there is none."""
        version = await self.versions.find(name, number)
        if version is None:
            raise RequestRefused(404, translatable("There is no such version."))
        return version.content

    async def save_draft(self, name: str, content: str, revision: int) -> EditedPreset:
        """Save a draft, even an invalid one; raises `RequestRefused` if `revision` is outdated."""
        _check_length(content)
        edited = await self.open_preset(name)
        if revision != edited.draft_revision:
            raise make_conflict_error()
        if content == edited.content:
            return edited
        base_version = edited.version if edited.draft is None else edited.draft.base_version
        source = None if edited.draft is None else edited.draft.source
        draft = PresetDraft(name, base_version, revision + 1, content, self.clock.now(), source)
        if not await self.drafts.save(draft):
            raise make_conflict_error()
        return replace(edited, draft=draft)

    async def save_fields(
        self, name: str, fields: Mapping[str, str], revision: int
    ) -> EditedPreset:
        """Save a form's values in the draft; raises `RequestRefused` if `revision` is outdated."""
        edited = await self.open_preset(name)
        value = await self.parse_json(edited)
        if any(name.startswith(FIELD_PREFIX) for name in fields):
            value = await self.include_lorebook(value)
        new_value = apply_entry_forms(apply_form(value, fields), fields)
        content = edited.content if new_value == value else write_preset_json(new_value)
        return await self.save_draft(name, content, revision)

    async def parse_json(self, preset: EditedPreset) -> dict[str, object]:
        """Parse the text of an edited preset as JSON; raises `UserError` if that fails."""
        value = (await self.check(preset.content)).value
        if value is None:
            raise UserError(translatable("The draft is not valid JSON. Fix it first."))
        return value

    async def parse_preset(self, edited: EditedPreset) -> Preset:
        """Parse the text of an edited preset; raises `UserError` if it is not a valid preset."""
        preset = (await self.check(edited.content)).preset
        if preset is None:
            raise UserError(translatable("Fix the errors in the draft first."))
        return preset

    async def include_lorebook(self, value: dict[str, object]) -> dict[str, object]:
        """Return a preset's JSON including its lorebook, even if the lorebook is in a file."""
        file = value.get("lorebook")
        if not isinstance(file, str):
            return value
        preset_file = self.open_folder() / "draft.json"
        lorebook = await asyncio.to_thread(read_lorebook_file, file, preset_file)
        return {**value, "lorebook": lorebook}

    async def begin_draft(
        self, name: str, content: str, source: ImportedFile | None, who: str, action: str
    ) -> None:
        """Store a new preset's draft; raises `UserError` for an invalid name or excess length."""
        if problem := find_name_problem(name):
            raise UserError(problem)
        _check_length(content)
        names = [one.name for one in await self.list_presets()]
        self.check_name_is_free(name, names)
        skeleton = confusable_skeleton(name.casefold())
        similar_names = [one for one in names if confusable_skeleton(one.casefold()) == skeleton]
        if similar_names:
            raise UserError.translatable(
                "{name} looks too similar to the preset {other}; choose another name.",
                name=repr(name),
                other=repr(similar_names[0]),
            )
        draft = PresetDraft(name, 0, 1, content, self.clock.now(), source)
        if not await self.drafts.save(draft):
            raise _make_taken_name_error(name)
        await self.log_change(who, action, name, "", content)

    async def check(self, content: str) -> CheckedPreset:
        """Check a preset's text, and whether the preset's providers support its parameters."""
        if len(content) <= _MAX_CHARS_CHECKED_AT_ONCE:
            return self._check_content(content)
        async with self._long_check_slots:
            return await asyncio.to_thread(self._check_content, content)

    def accepts_parameter(self, preset: Preset, name: str, value: float) -> bool:
        """Whether all providers of a preset accept this value of a sampling parameter."""
        presets = (preset.model_copy(update={"parameters": one}) for one in ({}, {name: value}))
        problems_before, problems_after = map(self.find_unsupported_parameters, presets)
        return problems_before == problems_after

    def _check_content(self, content: str) -> CheckedPreset:
        result = check_preset(content)
        if result.preset is None or result.document is None:
            return result
        problems = [
            PresetProblem(_find_parameter_line(result.document, text), text)
            for text in self.find_unsupported_parameters(result.preset)
        ]
        return replace(result, preset=None, problems=problems) if problems else result

    def load_files(self, preset: Preset) -> Preset:
        """Return a preset with its lorebook and character file loaded."""
        folder = self.open_folder()
        preset_with_lorebook = load_preset_lorebook(preset, folder / f"{preset.id}.json")
        return merge_character_file(preset_with_lorebook, folder)[0]

    def check_name_is_free(self, name: str, other_names: Iterable[str]) -> None:
        """Raise `UserError` if a preset in `other_names` already uses the file for this name."""
        file_id = preset_id(name)
        if taken_name := next((one for one in other_names if preset_id(one) == file_id), None):
            raise _make_taken_name_error(taken_name)

    async def log_change(self, who: str, action: str, name: str, before: str, after: str) -> None:
        removed_lines, added_lines = await asyncio.to_thread(list_changed_lines, before, after)
        await self.audit_log.record(who, action, name, removed_lines, added_lines)


def _find_parameter_line(document: JsonDocument, text: str) -> int:
    """Return the line number of the parameter that an error's text quotes."""
    name_match = re.search(r"'([^']+)'", text)
    path = ("parameters", name_match[1]) if name_match else ("parameters",)
    return document.line_at(path)


def list_changed_lines(before: str, after: str) -> tuple[str, str]:
    old_lines, new_lines = before.splitlines(), after.splitlines()
    edits = [one for one in find_edits(old_lines, new_lines) if one[0] != "equal"]
    removed_lines = "\n".join(line for _, begin, end, *_ in edits for line in old_lines[begin:end])
    added_lines = "\n".join(line for *_, begin, end in edits for line in new_lines[begin:end])
    return _shorten_for_audit(removed_lines), _shorten_for_audit(added_lines)


def _shorten_for_audit(text: str) -> str:
    return text if len(text) <= _MAX_AUDIT_CHARS else f"{text[:_MAX_AUDIT_CHARS]} …"


def _check_length(content: str) -> None:
    if len(content) > MAX_CONTENT_CHARS:
        raise UserError.translatable(
            "A preset may be up to {limit} characters long; this one would be {count}.",
            limit=f"{MAX_CONTENT_CHARS:,}",
            count=f"{len(content):,}",
        )


def _make_taken_name_error(name: str) -> UserError:
    text = translatable("There is already a preset named {name}; choose another name.", name=name)
    return UserError(text)


def make_conflict_error() -> RequestRefused:
    text = translatable("Somebody else has saved this draft in the meantime; reload the page.")
    return RequestRefused(409, text)
