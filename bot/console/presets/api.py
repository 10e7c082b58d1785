"""Change presets, their drafts, versions and lorebooks: the API, and the forms of the pages."""

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from bot.chat.access import Scope
from bot.chat.drafts import ImportedFile, PresetDraft
from bot.chat.session import PresetVersion
from bot.console.presets.editing import (
    MAX_CONTENT_CHARS,
    EditedPreset,
    PresetEditing,
    draft_conflict,
)
from bot.console.presets.files import ExportForm, ImportAnswer, PresetImports, send_preset
from bot.console.presets.form import write_preset_json
from bot.console.presets.lorebook_entries import add_entry, remove_entry
from bot.console.presets.preview import DraftPreviews
from bot.console.routes import ConsoleRequest, Page, RouteGroup, protected, redirect, route
from bot.errors import PresetError, RequestRefused, SettingsError, UserError
from bot.importers.card import card_file
from bot.importers.character_files import merge_character_file
from bot.prompting.presets.fields import MAX_NAME_CHARS, name_problem
from bot.prompting.presets.files import (
    delete_preset_file,
    export_preset,
    find_preset_file,
    load_preset_lorebook,
    preset_version,
    write_preset,
    write_whole_file,
)
from bot.prompting.presets.preset import Preset
from bot.prompting.presets.problems import PresetProblem
from bot.texts.text import text_of, translatable
from bot.value_class import value_class

_API = "/api/v1/presets/{name}"
_PAGE = "/presets/{name}"
_LOREBOOK_PAGE = "/presets/{name}?tab=lorebook"
MAX_VERSIONS = 200
"""The newest ones that are listed."""
_CONFLICT: Mapping[int, str] = {409: "Somebody has saved another draft meanwhile."}

_MAX_NUMBER = 2**31 - 1
PresetText = Annotated[str, Field(max_length=MAX_CONTENT_CHARS)]
Revision = Annotated[int, Field(ge=0, le=_MAX_NUMBER, description="0: there was no draft.")]
EntryNumber = Annotated[int, Field(ge=1, le=_MAX_NUMBER)]


def preset_path(name: str) -> str:
    """Return the address of a preset's page."""
    return f"/presets/{quote(name, safe='')}"


# --- what requests carry ------------------------------------------------------------------------


class PresetContent(BaseModel):
    content: PresetText


class NewDraft(BaseModel):
    content: PresetText
    revision: Revision = Field(description="Of the draft that was worked on.")


class DraftFields(BaseModel):
    """Fields of the form, by the name of the key; an empty one is left to the default."""

    fields: dict[str, Annotated[str, Field(max_length=MAX_CONTENT_CHARS)]]
    revision: Revision


class DraftRevision(BaseModel):
    revision: Revision


class PresetForm(BaseModel):
    """The fields of the form, by the name of the key."""

    model_config = ConfigDict(extra="allow")
    revision: Revision

    @property
    def fields(self) -> Mapping[str, str]:
        return {key: str(text) for key, text in (self.model_extra or {}).items()}


class LorebookForm(PresetForm):
    """The fields of an entry, by names such as "lorebook.3.keys"."""

    entry: EntryNumber


class EntryChange(BaseModel):
    revision: Revision
    entry: EntryNumber


class VersionNumber(BaseModel):
    version: int = Field(ge=1, le=_MAX_NUMBER)


class TokensQuery(BaseModel):
    entry: int = Field(
        0, ge=0, le=_MAX_NUMBER, description="The lorebook entry that is counted as well; 0: none."
    )


class NewName(BaseModel):
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)


class ExportQuery(BaseModel):
    form: ExportForm = ExportForm.JSON


class ImportForm(BaseModel):
    """The fields beside a dropped file."""

    name: str = Field("", max_length=64)
    into: str = Field("", max_length=64)


class NewImport(BaseModel):
    """A file that is to become the draft of a preset."""

    file_name: str = Field(min_length=1, max_length=255)
    content: str = Field(max_length=4 * MAX_CONTENT_CHARS, description="In base64.")
    name: str = Field("", max_length=64, description="Of the new preset; empty: the file's own.")
    into: str = Field("", max_length=64, description="The preset that it is added to.")


# --- what is answered ---------------------------------------------------------------------------


@value_class
class PresetRow:
    """A preset in the list."""

    name: str
    version: int | None
    """Absent: it was never published."""
    description: str
    provider: str
    model: str
    has_draft: bool
    is_default: bool


@value_class
class PresetList:
    presets: Sequence[PresetRow]


@value_class
class PresetDetail:
    """The published text of a preset, and the draft of the next one."""

    name: str
    version: int
    """0: it was never published."""
    published: str
    draft: str | None
    revision: int
    """Of the draft; 0: there is none."""
    problems: Sequence[PresetProblem]
    """Of the draft, or else of the published text."""


@value_class
class DraftContent:
    """Empty: the draft was discarded."""

    content: str


@value_class
class PresetCheck:
    problems: Sequence[PresetProblem]


@value_class
class FieldTokens:
    """What the texts of a preset take in a prompt, as its model counts."""

    tokens: Mapping[str, int]
    """By the name of the key."""
    limit: int | None
    """The token budget of the prompt, as far as it is set."""


@value_class
class VersionRow:
    version: int
    first_seen_at: float
    """In Unix seconds."""


@value_class
class VersionList:
    versions: Sequence[VersionRow]


@value_class
class VersionText:
    version: int
    content: str


@value_class
class PublishedPreset:
    name: str
    version: int


@value_class
class PresetName:
    """The preset that was made or deleted."""

    name: str


@value_class
class LorebookEntry:
    """An entry of the draft."""

    revision: int
    entry: int
    """Counts from 1, in the order of the lorebook."""


@value_class
class PresetApi(RouteGroup):
    """Reads and changes presets."""

    editing: PresetEditing
    previews: DraftPreviews
    imports: PresetImports

    # --- reading ------------------------------------------------------------------------------

    @route("GET /api/v1/presets", Scope.READ)
    async def list_presets(self) -> PresetList:
        """List presets and drafts."""
        return PresetList(
            [
                PresetRow(
                    name=one.name,
                    version=one.version,
                    description=one.preset.description if one.preset else "",
                    provider=one.preset.provider if one.preset else "",
                    model=one.preset.model if one.preset else "",
                    has_draft=one.has_draft,
                    is_default=one.is_default,
                )
                for one in await self.editing.all()
            ]
        )

    @route("GET /api/v1/preset-schema", Scope.READ)
    async def send_schema(self) -> web.Response:
        """The JSON schema of presets."""
        return protected(web.json_response(Preset.model_json_schema()))

    @route("POST /api/v1/preset-check", Scope.READ)
    async def check(self, given: PresetContent) -> PresetCheck:
        """Check the text of a preset, by line; nothing is stored."""
        return PresetCheck((await self.editing.check(given.content)).problems)

    @route(f"GET {_API}", Scope.READ)
    async def show(self, name: str) -> PresetDetail:
        """One preset and its draft."""
        return await self._detail(await self.editing.open(name))

    @route(f"GET {_API}/versions", Scope.READ)
    async def list_versions(self, name: str) -> VersionList:
        """List the versions of a preset, newest first."""
        found = await self.editing.versions.history(name, MAX_VERSIONS)
        return VersionList([VersionRow(number, at) for number, at in found])

    @route(f"GET {_API}/versions/{{number}}", Scope.READ)
    async def show_version(self, name: str, number: int) -> VersionText:
        """The text of one version."""
        return VersionText(number, await self.editing.version_text(name, number))

    @route(f"GET {_API}/tokens", Scope.READ)
    async def count_tokens(self, name: str, query: TokensQuery) -> FieldTokens:
        """Count the texts of the draft, as its model does."""
        edited = await self.editing.open(name)
        preset = (await self.editing.check(edited.content)).preset
        tokens = await self.previews.count(edited, query.entry)
        return FieldTokens(tokens, preset.max_input_tokens if preset else None)

    @route(f"GET {_PAGE}/export", Scope.READ)
    async def export(self, name: str, query: ExportQuery) -> web.Response:
        """Send a preset as a file to save."""
        return await send_preset(self.editing, await self.editing.open(name), query.form)

    async def _detail(self, edited: EditedPreset) -> PresetDetail:
        draft = None if edited.draft is None else edited.draft.content
        problems = (await self.editing.check(edited.content)).problems
        return PresetDetail(
            edited.name, edited.version, edited.published, draft, edited.revision, problems
        )

    # --- drafts -------------------------------------------------------------------------------

    @route(f"PUT {_API}/draft", Scope.PRESETS, errors=_CONFLICT)
    @route(f"POST {_PAGE}/draft", Scope.PRESETS, then=f"{_PAGE}?tab=json")
    async def save(self, name: str, new: NewDraft) -> PresetDetail:
        """Keep a text as the draft of a preset, valid or not."""
        return await self._detail(await self.editing.save_draft(name, new.content, new.revision))

    @route(f"PATCH {_API}/draft", Scope.PRESETS, errors=_CONFLICT)
    async def save_fields(self, name: str, new: DraftFields) -> PresetDetail:
        """Change keys in the draft of a preset, as its form does."""
        return await self._detail(await self.editing.save_fields(name, new.fields, new.revision))

    @route(f"POST {_PAGE}/form", Scope.PRESETS, then=_PAGE)
    async def save_form(self, name: str, form: PresetForm) -> None:
        await self.editing.save_fields(name, form.fields, form.revision)

    @route(f"DELETE {_API}/draft", Scope.PRESETS)
    async def discard(self, request: ConsoleRequest, name: str) -> DraftContent:
        """Discard the draft of a preset."""
        edited, draft = await self._open_draft(name)
        await self.editing.drafts.delete(name)
        await self._record(request, "discard draft", name, draft.content, edited.published)
        return DraftContent("")

    @route(f"POST {_PAGE}/discard", Scope.PRESETS)
    async def discard_by_form(self, request: ConsoleRequest, name: str) -> web.Response:
        await self.discard(request, name)
        is_left = name in self.editing.resolver.presets
        return redirect(preset_path(name) if is_left else "/presets")

    @route(f"POST {_API}/publish", Scope.PRESETS, errors=_CONFLICT)
    @route(f"POST {_PAGE}/publish", Scope.PRESETS, then=f"{_PAGE}?tab=versions")
    async def publish(
        self, request: ConsoleRequest, name: str, given: DraftRevision
    ) -> PublishedPreset:
        """Let the draft of a preset answer, as a new version."""
        editing = self.editing
        edited, draft = await self._open_draft(name)
        if draft.revision != given.revision:
            raise draft_conflict()
        preset = await self._valid(name, draft.content)
        editing.check_name(name, editing.resolver.presets.keys() - {name})
        live = await asyncio.to_thread(self._write, preset, draft)
        number = (await editing.versions.save([preset_version(live)]))[name]
        editing.resolver.publish(editing.prepare(live), number)
        await editing.announce([name])
        await editing.drafts.delete(name)
        text = export_preset(live)
        await self._record(request, "publish", f"{name} v{number}", edited.published, text)
        return PublishedPreset(name, number)

    async def _open_draft(self, name: str) -> tuple[EditedPreset, PresetDraft]:
        edited = await self.editing.open(name)
        if edited.draft is None:
            raise RequestRefused(404, translatable("There is no draft."))
        return edited, edited.draft

    async def _valid(self, name: str, content: str) -> Preset:
        checked = await self.editing.check(content)
        if checked.preset is None:
            first = checked.problems[0]
            raise UserError(
                translatable("Line {line}: {problem}", line=first.line, problem=first.text)
            )
        if checked.preset.name != name:
            raise UserError(
                translatable(
                    "A preset keeps its name: write {name}, or make a new preset.", name=repr(name)
                )
            )
        return checked.preset

    def _write(self, preset: Preset, draft: PresetDraft) -> Preset:
        """Write the files of a preset; return it with the files that it names."""
        folder = self.editing.open_folder()
        try:
            live = load_preset_lorebook(preset, find_preset_file(folder, preset))
            if draft.source is not None:
                write_whole_file(card_file(folder, preset), draft.source.content)
            live = merge_character_file(live, folder)[0]
            self.editing.prepare(live)
            write_preset(folder, preset)
        except SettingsError as error:
            raise UserError(text_of(error)) from None
        return live

    @route(f"POST {_API}/rollback", Scope.PRESETS, errors=_CONFLICT)
    @route(f"POST {_PAGE}/rollback", Scope.PRESETS, then=f"{_PAGE}?tab=changes")
    async def go_back(
        self, request: ConsoleRequest, name: str, chosen: VersionNumber
    ) -> PresetDetail:
        """Make the text of a version the draft."""
        content = await self.editing.version_text(name, chosen.version)
        edited = await self.editing.open(name)
        saved = await self.editing.save_draft(name, content, edited.revision)
        subject = f"{name} v{chosen.version}"
        await self._record(request, "go back", subject, edited.content, content)
        return await self._detail(saved)

    async def _record(
        self, request: ConsoleRequest, action: str, subject: str, before: str, after: str
    ) -> None:
        await self.editing.record(request.caller.name, action, subject, before, after)

    # --- new presets, and their end -----------------------------------------------------------

    @route(f"POST {_API}/copies", Scope.PRESETS)
    @route(f"POST {_PAGE}/copy", Scope.PRESETS, then=_PAGE)
    async def copy(self, request: ConsoleRequest, name: str, new: NewName) -> PresetName:
        """Make a draft of another name from a preset."""
        edited = await self.editing.open(name)
        return await self._copy(edited, new, request.caller.name, "copy preset")

    @route(f"POST {_PAGE}/rename", Scope.PRESETS, then=_PAGE)
    async def rename(self, request: ConsoleRequest, name: str, new: NewName) -> PresetName:
        """Rename a preset that was never published."""
        edited = await self.editing.open(name)
        if edited.draft is None or name in self.editing.resolver.presets:
            raise UserError(
                translatable(
                    "Histories and settings know a published preset by its name. Copy it, choose"
                    " the copy where it answers, and delete this one."
                )
            )
        renamed = await self._copy(edited, new, request.caller.name, "rename preset")
        await self.editing.drafts.delete(name)
        return renamed

    async def _copy(self, edited: EditedPreset, new: NewName, who: str, action: str) -> PresetName:
        name = new.name.strip()
        if problem := name_problem(name):
            raise UserError(problem)
        content = write_preset_json({**await self.editing.value_of(edited), "name": name})
        source = None if edited.draft is None else edited.draft.source
        draft = PresetDraft(name, 0, 1, content, self.editing.clock.now(), source)
        await self.editing.begin_draft(draft, who, action)
        return PresetName(name)

    @route(
        f"DELETE {_API}",
        Scope.PRESETS,
        errors={422: "It is the default preset, or its file cannot be deleted."},
    )
    @route(f"POST {_PAGE}/delete", Scope.PRESETS, then="/presets")
    async def delete(self, request: ConsoleRequest, name: str) -> PresetName:
        """Delete a preset, its file and its draft; its versions are kept."""
        editing = self.editing
        edited = await editing.open(name)
        if name == editing.resolver.default.name:
            raise UserError(
                translatable(
                    "{name} is the default preset, which answers where none is chosen; set another"
                    " TROUPE_DEFAULT_PRESET first.",
                    name=name,
                )
            )
        preset = editing.resolver.presets.get(name)
        if preset is not None:
            try:
                await asyncio.to_thread(delete_preset_file, editing.open_folder(), preset)
            except PresetError as error:
                raise UserError(text_of(error)) from None
            await editing.versions.save([PresetVersion(name, "", 1)])
            editing.resolver.remove(name)
            await editing.announce([name])
        await editing.drafts.delete(name)
        await self._record(request, "delete preset", name, edited.content, "")
        return PresetName(name)

    @route(
        "POST /api/v1/preset-imports",
        Scope.PRESETS,
        errors={404: "There is no such preset.", 409: "Its draft was changed."},
    )
    async def import_file(self, request: ConsoleRequest, new: NewImport) -> ImportAnswer:
        """Make a draft of a file, or add it to the draft of a preset."""
        try:
            content = base64.b64decode(new.content, validate=True)
        except (binascii.Error, ValueError):
            raise RequestRefused(422, translatable("The content is not in base64.")) from None
        file = ImportedFile(new.file_name, content)
        return await self.imports.add(file, new.name.strip(), new.into, request.caller.name)

    @route("POST /presets/import", Scope.PRESETS)
    async def import_by_form(
        self, request: ConsoleRequest, form: ImportForm
    ) -> web.Response | Page:
        given = (await request.http.post()).get("file")
        if not isinstance(given, web.FileField):
            raise RequestRefused(422, translatable("Choose a file."))
        file = ImportedFile(given.filename[:255], given.file.read())
        made = await self.imports.add(file, form.name.strip(), form.into, request.caller.name)
        if made.notes:
            values = {"made": made, "address": preset_path(made.name)}
            return Page("presets/imported.html", values)
        return redirect(preset_path(made.name))

    # --- lorebooks ----------------------------------------------------------------------------

    @route(f"POST {_API}/lorebook/entries", Scope.PRESETS, errors=_CONFLICT)
    @route(f"POST {_PAGE}/lorebook/add", Scope.PRESETS, then=f"{_LOREBOOK_PAGE}&entry={{entry}}")
    async def add_entry(self, name: str, given: DraftRevision) -> LorebookEntry:
        """Add an empty entry to the lorebook of the draft."""
        try:
            changed, number = add_entry(await self._with_lorebook(name))
        except ValueError:
            raise UserError(
                translatable("No entry can be added to this lorebook; see its JSON.")
            ) from None
        text = write_preset_json(changed)
        saved = await self.editing.save_draft(name, text, given.revision)
        return LorebookEntry(saved.revision, number)

    @route(f"DELETE {_API}/lorebook/entries/{{number}}", Scope.PRESETS, errors=_CONFLICT)
    async def remove_entry(self, name: str, number: int, query: DraftRevision) -> PresetDetail:
        """Remove an entry from the lorebook of the draft."""
        try:
            changed = remove_entry(await self._with_lorebook(name), number)
        except KeyError:
            raise RequestRefused(404, translatable("There is no such entry.")) from None
        text = write_preset_json(changed)
        return await self._detail(await self.editing.save_draft(name, text, query.revision))

    @route(f"POST {_PAGE}/lorebook/remove", Scope.PRESETS, then=_LOREBOOK_PAGE)
    async def remove_entry_by_form(self, name: str, form: EntryChange) -> None:
        await self.remove_entry(name, form.entry, DraftRevision(revision=form.revision))

    @route(f"POST {_PAGE}/lorebook/change", Scope.PRESETS)
    async def change_entry(self, name: str, form: LorebookForm) -> web.Response:
        await self.editing.save_fields(name, form.fields, form.revision)
        return redirect(f"{preset_path(name)}?tab=lorebook&entry={form.entry}")

    async def _with_lorebook(self, name: str) -> dict[str, object]:
        editing = self.editing
        return await editing.with_lorebook(await editing.value_of(await editing.open(name)))
