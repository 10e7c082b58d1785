"""Import and export presets: files that are dropped, and files to save."""

import base64
import binascii
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.console.preset_draft import ImportedFile
from bot.console.presets.editing import MAX_CONTENT_CHARS
from bot.console.presets.exporting import ExportForm, PresetExports
from bot.console.presets.importing import PresetImports
from bot.console.presets.preset_api import preset_name
from bot.console.routes import (
    ConsoleRequest,
    Page,
    RouteAnswer,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import RequestRefused
from bot.texts.text import translatable


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
