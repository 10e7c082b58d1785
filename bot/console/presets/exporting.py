"""Write presets for other programs: JSON, Modelfile, character cards."""

import asyncio
from enum import StrEnum
from urllib.parse import quote

from aiohttp import web

from bot.console.app import protected
from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.errors import PresetError, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.importers.cards.card import CardContainer, write_card
from bot.importers.cards.stored_cards import load_card
from bot.importers.modelfile.conversion import modelfile_from_preset
from bot.prompting.presets.files import export_preset
from bot.prompting.presets.preset import Preset
from bot.texts.text import text_of, translatable


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


@frozen_dataclass
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
