"""The lorebook of a preset for the page: its entries, and what a text would activate."""

import asyncio
from collections.abc import Sequence

from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.console.presets.form.lorebook_entries import EntryForm, entry_form
from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.lorebook.trial import LorebookTrial, try_lorebook
from bot.prompting.presets.preset import Preset
from bot.prompting.text.token_counter import counter_for_model, get_counter
from bot.texts.text import translatable

_PROMPT_DIVISOR = 4  # as in prompts: a quarter of the budget, if the book has none
_TOKENS_WITHOUT_LIMIT = 1024


@frozen_dataclass
class LorebookView:
    """What a text activates; None: the draft has no lorebook, or mistakes."""

    trial: LorebookTrial | None
    pieces: Sequence[tuple[str, bool]] = ()
    """The text, and which pieces of it are keys."""
    problem: str = ""


@frozen_dataclass
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
