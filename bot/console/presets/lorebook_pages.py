"""Edit the entries of a preset's lorebook in its draft."""

from typing import Annotated
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from bot.chat.access import Scope
from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.console.presets.form.lorebook_entries import add_entry, remove_entry
from bot.console.presets.form.values import write_preset_json
from bot.console.presets.preset_api import preset_name
from bot.console.presets.preset_models import (
    DraftRevision,
    PresetDetail,
    Revision,
    preset_detail,
)
from bot.console.routes import (
    ConsoleRequest,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import RequestRefused, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.texts.text import translatable

_ONE = "/presets/{name}/lorebook"
_CONFLICT = {409: "Somebody has saved another draft meanwhile."}
EntryNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


class LorebookFields(BaseModel):
    """The fields of an entry, by names such as "lorebook.3.keys"."""

    model_config = ConfigDict(extra="allow")
    revision: Revision
    entry: EntryNumber


class LorebookEntry(BaseModel):
    """An entry of the draft."""

    revision: Revision
    entry: EntryNumber = Field(description="Counts from 1, in the order of the lorebook.")


@frozen_dataclass
class LorebookEditing:
    """Adds entries to the lorebook of a draft, and removes them; `save_fields` changes them."""

    editing: PresetEditing

    async def add(self, name: str, revision: int) -> tuple[EditedPreset, int]:
        """Add an empty entry; return the preset and the entry's number.

        Raises:
            RequestRefused: 404: there is no such preset; 409: it is another draft than was read.
            UserError: the draft is no JSON, or its lorebook is malformed or full.
        """
        value = await self._value(name)
        try:
            changed, number = add_entry(value)
        except ValueError:
            raise UserError(
                translatable("The lorebook takes no further entry; the JSON shows it.")
            ) from None
        saved = await self.editing.save_draft(name, write_preset_json(changed), revision)
        return saved, number

    async def remove(self, name: str, number: int, revision: int) -> EditedPreset:
        """Remove an entry; raises as `add`, and `RequestRefused` with 404 if there is none."""
        value = await self._value(name)
        try:
            changed = remove_entry(value, number)
        except KeyError:
            raise RequestRefused(404, translatable("There is no such entry.")) from None
        return await self.editing.save_draft(name, write_preset_json(changed), revision)

    async def _value(self, name: str) -> dict[str, object]:
        value = await self.editing.value_of(await self.editing.open(name))
        return await self.editing.with_lorebook(value)


class LorebookPages(RouteGroup):
    """Serves the forms of entries and the API for them."""

    def __init__(self, lorebooks: LorebookEditing) -> None:
        self._lorebooks = lorebooks

    @route(
        f"POST /api/v1{_ONE}/entries",
        Scope.PRESETS,
        "Add an empty entry to the lorebook of the draft.",
        body=DraftRevision,
        answer=LorebookEntry,
        errors=_CONFLICT,
    )
    async def _add(self, request: ConsoleRequest) -> LorebookEntry:
        revision = request.body(DraftRevision).revision
        saved, number = await self._lorebooks.add(preset_name(request), revision)
        return LorebookEntry(revision=saved.revision, entry=number)

    @route(
        f"DELETE /api/v1{_ONE}/entries/{{number}}",
        Scope.PRESETS,
        "Remove an entry from the lorebook of the draft.",
        query=DraftRevision,
        answer=PresetDetail,
        errors=_CONFLICT,
    )
    async def _remove(self, request: ConsoleRequest) -> PresetDetail:
        number, revision = request.number("number"), request.query(DraftRevision).revision
        saved = await self._lorebooks.remove(preset_name(request), number, revision)
        checked = await self._lorebooks.editing.check(saved.content)
        return preset_detail(saved, checked, request.look.language)

    @route(f"POST {_ONE}/change", Scope.PRESETS, "Change an entry.", body=LorebookFields)
    async def _change_by_form(self, request: ConsoleRequest) -> web.Response:
        form = request.body(LorebookFields)
        fields = {key: str(text) for key, text in (form.model_extra or {}).items()}
        name = preset_name(request)
        await self._lorebooks.editing.save_fields(name, fields, form.revision)
        return _see(name, form.entry)

    @route(f"POST {_ONE}/add", Scope.PRESETS, "Add an entry.", body=DraftRevision)
    async def _add_by_form(self, request: ConsoleRequest) -> web.Response:
        return _see(preset_name(request), (await self._add(request)).entry)

    @route(f"POST {_ONE}/remove", Scope.PRESETS, "Remove an entry.", body=LorebookEntry)
    async def _remove_by_form(self, request: ConsoleRequest) -> web.Response:
        form, name = request.body(LorebookEntry), preset_name(request)
        await self._lorebooks.remove(name, form.entry, form.revision)
        return _see(name)


def _see(name: str, entry: int = 0) -> web.Response:
    chosen = f"&entry={entry}" if entry else ""
    return redirect(f"/presets/{quote(name, safe='')}?tab=lorebook{chosen}")
