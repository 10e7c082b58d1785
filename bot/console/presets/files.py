"""Import and export presets: JSON, cards, Modelfiles, lorebooks."""

import asyncio
import base64
import binascii
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.drafts import ImportedFile, PresetDraft
from bot.console.app import protected
from bot.console.presets.api import preset_name
from bot.console.presets.editing import MAX_CONTENT_CHARS, EditedPreset, PresetEditing
from bot.console.routes import (
    ConsoleRequest,
    Page,
    RouteAnswer,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import CharacterError, PresetError, RequestRefused, TemplateError, UserError
from bot.importers.card import CardContainer, load_card, read_card, write_card
from bot.importers.card_to_preset import card_notes, preset_from_card
from bot.importers.character_files import read_character_content
from bot.importers.file_kinds import (
    CHARACTER_IMPORTS,
    PRESET_IMPORTS,
    FileKind,
    check_file_kind,
)
from bot.importers.modelfile import modelfile_from_preset
from bot.importers.preset_files import preset_from_text
from bot.prompting.presets.fields import MAX_NAME_CHARS
from bot.prompting.presets.files import export_preset, validate_preset, write_whole_file
from bot.prompting.presets.preset import Preset
from bot.texts.text import text_of, translatable
from bot.value_class import value_class

_ACCEPTED = PRESET_IMPORTS | CHARACTER_IMPORTS | {FileKind.LOREBOOK, FileKind.HARUHI}
_ADDED_TO_PRESETS = (PRESET_IMPORTS | {FileKind.LOREBOOK}) - {FileKind.PRESET, FileKind.MODELFILE}
"""What a file of these kinds says is added to the preset that it is dropped on."""


@value_class
class ImportedDraft:
    """The preset whose draft a file has become, or was added to."""

    name: str
    notes: Sequence[str]
    """What the preset expresses differently than the file, or not at all."""


@value_class
class PresetImports:
    """Imports files; `troupe preset import` and `troupe character import` use the same readers."""

    editing: PresetEditing
    is_local: Callable[[Preset], bool]
    """Whether a preset answers with a model on this machine."""

    async def add(self, file: ImportedFile, name: str, into: str, who: str) -> ImportedDraft:
        """Make a draft of a file.

        Args:
            file: the file, of any kind.
            name: of the new preset; empty: the file's own.
            into: the preset that the file was dropped on; empty: none. A whole preset or a
                character becomes a preset of its own all the same.
            who: imports it.

        Raises:
            UserError: it cannot be imported; the text says what it is, and what to do with it.
        """
        path = Path(Path(file.name.replace("\\", "/").replace("\0", "")).name or "file")
        kind = await asyncio.to_thread(check_file_kind, file.content, path, _ACCEPTED)
        try:
            if into and kind in _ADDED_TO_PRESETS:
                return await self._add_to(into, path, file.content, who)
            preset, notes = await asyncio.to_thread(self._read, kind, path, file.content, name)
            text = await asyncio.to_thread(export_preset, preset)
        except (PresetError, CharacterError, TemplateError) as error:
            raise UserError(text_of(error)) from None
        source = ImportedFile(path.name, file.content) if kind in CHARACTER_IMPORTS else None
        draft = PresetDraft(preset.name, 0, 1, text, self.editing.clock.now(), source)
        await self.editing.begin_draft(draft, who, "import")
        return ImportedDraft(preset.name, notes)

    def _read(
        self, kind: FileKind, path: Path, content: bytes, name: str
    ) -> tuple[Preset, Sequence[str]]:
        default = self.editing.resolver.default
        if kind is FileKind.LOREBOOK:
            raise UserError(translatable("This is a lorebook: open a preset, and drop it there."))
        if kind in CHARACTER_IMPORTS:
            card = read_card(content, path.name)
            preset = preset_from_card(
                card,
                path.name,
                name=name or None,
                provider=default.provider,
                model=default.model,
                is_local=self.is_local(default),
            )
            return preset, card_notes(card, preset)
        if kind is FileKind.HARUHI:
            return self._keep_character(path, content, name, default), []
        imported = preset_from_text(_decode(path, content), path, name or None)
        return imported.preset, imported.notes

    def _keep_character(self, path: Path, content: bytes, name: str, default: Preset) -> Preset:
        """Put a character file with its stories into the presets folder; return its preset."""
        found = read_character_content(path, content)
        preset = validate_preset(
            {
                **found.preset_keys,
                "name": name or path.stem[:MAX_NAME_CHARS],
                "role_name": path.stem,
                "provider": default.provider,
                "model": default.model,
                "character": path.name,
            },
            path.name,
        )
        target = self.editing.open_folder() / path.name
        if target.exists() and target.read_bytes() != content:
            raise UserError(
                translatable("There is another file {name} already.", name=repr(path.name))
            )
        write_whole_file(target, content)
        return preset

    async def _add_to(self, name: str, path: Path, content: bytes, who: str) -> ImportedDraft:
        edited = await self.editing.open(name)
        preset = (await self.editing.check(edited.content)).preset
        if preset is None:
            raise UserError(translatable("Mend the mistakes of the draft first."))
        given = _decode(path, content)
        imported = await asyncio.to_thread(preset_from_text, given, path, into=preset)
        text = await asyncio.to_thread(export_preset, imported.preset)
        await self.editing.save_draft(name, text, edited.revision)
        await self.editing.record(who, "import into", name, edited.content, text)
        return ImportedDraft(name, imported.notes)


def _decode(path: Path, content: bytes) -> str:
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UserError(
            translatable("{name} is not UTF-8; save it as UTF-8.", name=path.name)
        ) from None


class ExportForm(StrEnum):
    """What a preset can be written as."""

    JSON = "json"
    MODELFILE = "modelfile"
    CARD_PNG = "png"
    CARD_JSON = "card.json"
    CHARX = "charx"


_CONTAINERS = {
    ExportForm.CARD_PNG: CardContainer.PNG,
    ExportForm.CARD_JSON: CardContainer.JSON,
    ExportForm.CHARX: CardContainer.CHARX,
}
_TYPES = {ExportForm.CARD_PNG: "image/png", ExportForm.CHARX: "application/zip"}


@value_class
class PresetExports:
    """Writes what is worked on: the draft, or the published version where there is none."""

    editing: PresetEditing

    async def send(self, edited: EditedPreset, form: ExportForm) -> web.Response:
        """Return a preset as a file to save; raises `UserError` for a draft with mistakes."""
        preset = (await self.editing.check(edited.content)).preset
        if preset is None:
            raise UserError(translatable("Mend the mistakes of the draft first."))
        content = await asyncio.to_thread(self._write, preset, form)
        response = web.Response(
            body=content, content_type=_TYPES.get(form, "application/octet-stream")
        )
        name = f"{edited.name}.{form}" if form is not ExportForm.MODELFILE else "Modelfile"
        protected(response, "")
        disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
        response.headers["Content-Disposition"] = disposition
        return response

    def _write(self, preset: Preset, form: ExportForm) -> bytes:
        try:
            complete = self.editing.complete(preset)
            match form:
                case ExportForm.JSON:
                    return export_preset(complete).encode()
                case ExportForm.MODELFILE:
                    return modelfile_from_preset(complete).encode()
                case _:
                    card = load_card(complete, self.editing.open_folder())
                    return write_card(card, _CONTAINERS[form])
        except PresetError as error:
            raise UserError(text_of(error)) from None


class ExportQuery(BaseModel):
    form: ExportForm = ExportForm.JSON


class ImportForm(BaseModel):
    """What stands beside a dropped file."""

    name: str = Field("", max_length=64)
    into: str = Field("", max_length=64)


class NewImport(BaseModel):
    """A file that is to become the draft of a preset."""

    file_name: str = Field(min_length=1, max_length=255)
    content: str = Field(max_length=4 * MAX_CONTENT_CHARS, description="In base64.")
    name: str = Field("", max_length=64, description="Of the new preset; empty: the file's own.")
    into: str = Field("", max_length=64, description="The preset that it is added to.")


class ImportAnswer(BaseModel):
    name: str = Field(description="The preset that has the draft.")
    notes: list[str] = Field(description="What it expresses differently than the file.")


class PresetFilePages(RouteGroup):
    """Takes and sends files."""

    def __init__(self, imports: PresetImports, exports: PresetExports) -> None:
        self._imports = imports
        self._exports = exports

    @route("POST /presets/import", Scope.PRESETS, "Make a draft of a file.", body=ImportForm)
    async def _import_by_form(self, request: ConsoleRequest) -> RouteAnswer:
        form = request.body(ImportForm)
        given = (await request.http.post()).get("file")
        if not isinstance(given, web.FileField):
            raise RequestRefused(422, translatable("Choose a file."))
        file = ImportedFile(given.filename[:255], given.file.read())
        who = request.caller.name
        made = await self._imports.add(file, form.name.strip(), form.into, who)
        address = f"/presets/{quote(made.name, safe='')}"
        if made.notes:
            return Page("presets/imported.html", {"made": made, "address": address})
        return redirect(address)

    @route(
        "POST /api/v1/preset-imports",
        Scope.PRESETS,
        "Make a draft of a file, or add it to the draft of a preset.",
        body=NewImport,
        answer=ImportAnswer,
        errors={404: "There is no such preset.", 409: "Its draft was changed."},
    )
    async def _import(self, request: ConsoleRequest) -> ImportAnswer:
        new = request.body(NewImport)
        try:
            content = base64.b64decode(new.content, validate=True)
        except (binascii.Error, ValueError):
            raise RequestRefused(422, translatable("The content is not in base64.")) from None
        file = ImportedFile(new.file_name, content)
        made = await self._imports.add(file, new.name.strip(), new.into, request.caller.name)
        return ImportAnswer(name=made.name, notes=list(made.notes))

    @route(
        "GET /presets/{name}/export", Scope.READ, "A preset as a file to save.", query=ExportQuery
    )
    async def _export(self, request: ConsoleRequest) -> web.Response:
        edited = await self._exports.editing.open(preset_name(request))
        return await self._exports.send(edited, request.query(ExportQuery).form)
