"""Import and export presets: JSON, cards, Modelfiles, lorebooks."""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from bot.chat.drafts import ImportedFile
from bot.console.presets.editing import EditedPreset, PresetEditor
from bot.console.routes import make_file_response
from bot.errors import CharacterError, TemplateError, UserError
from bot.importers.card import CardContainer, encode_card, load_card, read_card
from bot.importers.card_to_preset import card_notes, preset_from_card
from bot.importers.character_files import read_character_content
from bot.importers.file_kinds import CHARACTER_KINDS, PRESET_KINDS, FileKind, check_file_kind
from bot.importers.modelfile import modelfile_from_preset
from bot.importers.preset_files import preset_from_text
from bot.media.text_decoding import decode_text
from bot.prompting.presets.fields import MAX_NAME_CHARS
from bot.prompting.presets.files import export_preset, validate_preset, write_file_atomically
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable
from bot.value_class import value_class

_ACCEPTED_KINDS = PRESET_KINDS | CHARACTER_KINDS | {FileKind.LOREBOOK, FileKind.HARUHI}
_MERGEABLE_KINDS = (PRESET_KINDS | {FileKind.LOREBOOK}) - {FileKind.PRESET, FileKind.MODELFILE}
"""Files of these kinds are merged into the preset that they are dropped on."""


@value_class
class PresetImports:
    """Imports files with the readers of `troupe preset import` and `troupe character import`."""

    editor: PresetEditor
    is_local: Callable[[Preset], bool]

    async def import_file(
        self, file: ImportedFile, name: str, into: str, who: str
    ) -> tuple[str, Sequence[str]]:
        """Create a draft from a file, or add the file to the draft of the preset `into`.

        A file with a whole preset or character always becomes a separate draft. Its name is `name`
        or, if that is empty, the one in the file. Return the preset's name, and notes about what
        was converted differently or lost.

        Raises:
            UserError, PresetError: the file cannot be imported; the text says what to do.
        """
        path = Path(Path(file.name.replace("\\", "/").replace("\0", "")).name or "file")
        content = file.content
        kind = await asyncio.to_thread(check_file_kind, content, path, _ACCEPTED_KINDS)
        try:
            if into and kind in _MERGEABLE_KINDS:
                return await self._add_to_draft(into, path, content, who)
            preset, notes = await asyncio.to_thread(self._read_preset, kind, path, content, name)
        except (CharacterError, TemplateError) as error:
            raise UserError(error.text) from None
        text = await asyncio.to_thread(export_preset, preset)
        source = ImportedFile(path.name, content) if kind in CHARACTER_KINDS else None
        await self.editor.begin_draft(preset.name, text, source, who, "import")
        return preset.name, notes

    def _read_preset(
        self, kind: FileKind, path: Path, content: bytes, name: str
    ) -> tuple[Preset, Sequence[str]]:
        default = self.editor.resolver.default_preset
        if kind is FileKind.LOREBOOK:
            raise UserError(
                translatable("This is a lorebook. Open a preset and drop the file there.")
            )
        if kind in CHARACTER_KINDS:
            card = read_card(content, path.name)
            preset = preset_from_card(
                card,
                path.name,
                name=name or None,
                provider=default.provider,
                model=default.model,
                local_model=self.is_local(default),
            )
            return preset, card_notes(card, preset)
        if kind is FileKind.HARUHI:
            return self._save_character(path, content, name, default), []
        imported_preset = preset_from_text(_decode_file(path, content), path, name or None)
        return imported_preset.preset, imported_preset.notes

    def _save_character(self, path: Path, content: bytes, name: str, default: Preset) -> Preset:
        """Save a character file with its stories to the presets folder; return its preset."""
        file_keys, _ = read_character_content(path, content)
        data = {
            **file_keys,
            "name": name or path.stem[:MAX_NAME_CHARS],
            "role_name": path.stem,
            "provider": default.provider,
            "model": default.model,
            "character": path.name,
        }
        preset = validate_preset(data, path.name)
        target_file = self.editor.open_folder() / path.name
        if target_file.exists() and target_file.read_bytes() != content:
            text = translatable("Another file is named {name}; rename yours.", name=repr(path.name))
            raise UserError(text)
        write_file_atomically(target_file, content)
        return preset

    async def _add_to_draft(
        self, name: str, path: Path, content: bytes, who: str
    ) -> tuple[str, Sequence[str]]:
        edited = await self.editor.open_preset(name)
        preset = await self.editor.parse_preset(edited)
        file_text = _decode_file(path, content)
        imported_preset = await asyncio.to_thread(preset_from_text, file_text, path, base=preset)
        text = await asyncio.to_thread(export_preset, imported_preset.preset)
        await self.editor.save_draft(name, text, edited.draft_revision)
        await self.editor.log_change(who, "import into", name, edited.content, text)
        return name, imported_preset.notes


def _decode_file(path: Path, content: bytes) -> str:
    text = decode_text(content, len(content))
    if text is None:
        raise UserError(translatable("{name} is not UTF-8; save it as UTF-8.", name=path.name))
    return text.replace("\r\n", "\n").replace("\r", "\n")


class ExportForm(StrEnum):
    """A file format for exporting a preset."""

    JSON = "json"
    MODELFILE = "modelfile"
    CARD_PNG = "png"
    CARD_JSON = "card.json"
    CHARX = "charx"


_CARD_CONTAINERS = {
    ExportForm.CARD_PNG: CardContainer.PNG,
    ExportForm.CARD_JSON: CardContainer.JSON,
    ExportForm.CHARX: CardContainer.CHARX,
}
_CONTENT_TYPES = {ExportForm.CARD_PNG: "image/png", ExportForm.CHARX: "application/zip"}


async def send_preset(editor: PresetEditor, edited: EditedPreset, form: ExportForm) -> web.Response:
    """Return a draft or, without one, the published version as a download."""
    preset = await editor.parse_preset(edited)
    content = await asyncio.to_thread(_export_bytes, editor, preset, form)
    name = f"{edited.name}.{form}" if form is not ExportForm.MODELFILE else "Modelfile"
    content_type = _CONTENT_TYPES.get(form, "application/octet-stream")
    return make_file_response(content, content_type, f"filename*=UTF-8''{quote(name, safe='')}")


def _export_bytes(editor: PresetEditor, preset: Preset, form: ExportForm) -> bytes:
    loaded_preset = editor.load_files(preset)
    match form:
        case ExportForm.JSON:
            return export_preset(loaded_preset).encode()
        case ExportForm.MODELFILE:
            return modelfile_from_preset(loaded_preset).encode()
        case _:
            card = load_card(loaded_preset, editor.open_folder())
            return encode_card(card, _CARD_CONTAINERS[form])
