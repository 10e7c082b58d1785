"""The lorebook of a draft: edit its entries, and try it on a text."""

import asyncio
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from bot.chat.access import Scope
from bot.console.presets.api import (
    DraftRevision,
    PresetDetail,
    Revision,
    preset_detail,
    preset_name,
)
from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.console.presets.form import write_preset_json
from bot.console.presets.lorebook_entries import EntryForm, add_entry, entry_form, remove_entry
from bot.console.routes import (
    ConsoleRequest,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import RequestRefused, UserError
from bot.prompting.lorebook.search import LorebookTrial, try_lorebook
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import counter_for_model, get_counter
from bot.texts.text import translatable
from bot.value_class import value_class

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


@value_class
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


_PROMPT_DIVISOR = 4  # as in prompts: a quarter of the budget, if the book has none
_TOKENS_WITHOUT_LIMIT = 1024


@value_class
class LorebookView:
    """What a text activates; None: the draft has no lorebook, or mistakes."""

    trial: LorebookTrial | None
    pieces: Sequence[tuple[str, bool]] = ()
    """The text, and which pieces of it are keys."""
    problem: str = ""


@value_class
class OpenEntry:
    """The entry that is edited."""

    form: EntryForm | None = None
    file: str = ""
    """The file that the preset names instead of a lorebook; a change puts it into the preset."""
    problem: str = ""
    """Why it cannot be shown."""


async def open_entry(
    editing: PresetEditing, value: dict[str, object] | None, number: int
) -> OpenEntry:
    """Return an entry of a preset's lorebook as a form.

    Args:
        editing: reads the file that the preset may name.
        value: the preset as JSON; None: its text is none.
        number: counts from 1; 0: none is edited.
    """
    if value is None:
        return OpenEntry(problem=translatable("The draft is no JSON; mend that first."))
    try:
        book = (await editing.with_lorebook(value)).get("lorebook")
    except UserError as error:
        return OpenEntry(problem=error.text)
    file = value.get("lorebook")
    return OpenEntry(entry_form(book, number), file if isinstance(file, str) else "")


async def view_lorebook(editing: PresetEditing, edited: EditedPreset, text: str) -> LorebookView:
    """Try the lorebook of a draft on a text; raises nothing for a draft with mistakes."""
    preset = (await editing.check(edited.content)).preset
    if preset is None:
        return LorebookView(None)
    try:
        complete = await asyncio.to_thread(editing.complete, preset)
    except UserError as error:
        return LorebookView(None, problem=error.text)
    book = complete.parsed_lorebook
    if book is None:
        return LorebookView(None)
    counter = get_counter(preset.token_counter or "") if preset.token_counter else None
    counter = counter or counter_for_model(preset.model)
    await counter.load()
    trial = await asyncio.to_thread(try_lorebook, book, text, budget=_budget(preset), count=counter)
    return LorebookView(trial, list(_pieces(text, trial.marks)))


def _budget(preset: Preset) -> int:
    limit = preset.max_input_tokens
    return _TOKENS_WITHOUT_LIMIT if not limit else limit // _PROMPT_DIVISOR


def _pieces(text: str, marks: Sequence[tuple[int, int]]) -> Sequence[tuple[str, bool]]:
    pieces, at = [], 0
    for begin, end in marks:
        pieces += [(text[at:begin], False), (text[begin:end], True)]
        at = end
    return [one for one in (*pieces, (text[at:], False)) if one[0]]
