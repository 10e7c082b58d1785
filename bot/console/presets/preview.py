"""Preview a draft: its prompt for a scene, and its lorebook for a text."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from bot.chat.answers import AnswerSearch
from bot.chat.drafts import Scene, find_newest_scene
from bot.chat.incoming import Person
from bot.chat.receipt import Receipt
from bot.chat.session import Turn
from bot.console.presets.editing import EditedPreset, PresetEditor
from bot.console.presets.form import list_field_specs, value_at
from bot.console.presets.lorebook_entries import make_entry_form
from bot.console.prompt_preview import DraftComposer
from bot.console.prompt_view import PieceKind, cut_at_marks, view_prompt
from bot.errors import BackendError, RequestRefused, SettingsError, UserError
from bot.prompting.lorebook.search import try_lorebook
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import get_counter, get_counter_for_model
from bot.storage.reports import AnswerLog
from bot.texts.text import translatable
from bot.value_class import value_class

_SCENE_START = datetime(2026, 1, 5, 19, 30, tzinfo=UTC)
_SCENE_PLATFORM = "web"
_CHARACTER_SPEAKER = ""
"""The speaker in a sample's lines that stands for the preset's character."""


def make_sample_scene(name: str, preset: str) -> Scene | None:
    """Return a sample conversation in which a preset should answer the last message."""
    turns = []
    for at, (speaker, text) in enumerate(SAMPLE_SCENES[name]):
        turn_time = _SCENE_START + timedelta(minutes=at)
        if speaker == _CHARACTER_SPEAKER:
            turns.append(Turn("assistant", text, None, turn_time, preset))
        else:
            person = Person(f"{_SCENE_PLATFORM}:{speaker.casefold()}", speaker)
            turns.append(Turn("user", text, person, turn_time, message_id=f"sample-{at}"))
    return find_newest_scene(f"{_SCENE_PLATFORM}:sample-{name}", 1, turns)


SAMPLE_SCENES: Mapping[str, Sequence[tuple[str, str]]] = {
    "tavern": (
        ("Alice", "Is anybody still up? It is raining into my boots."),
        (_CHARACTER_SPEAKER, "Come in, and mind the step. There is soup."),
        ("Bob", "I was here first, but I will share the bench."),
        ("Alice", "Thank you, Bob. What are you mending there?"),
        (_CHARACTER_SPEAKER, "Something that stopped. It happens to things in this weather."),
        ("小明", "我的怀表停了，你能帮我看看吗？"),
    ),
    "first": (("Alice", "Hello! Who are you, and what can you do?"),),
}
"""Sample scenes as (speaker, text) lines, default scene first; labels.html has the titles."""
_MAX_RECORDED_SCENES = 24
_LOREBOOK_PROMPT_DIVISOR = 4  # a lorebook without a budget gets a quarter, as in prompts
_DEFAULT_LOREBOOK_TOKENS = 1024
_MAX_SEARCHED_ANSWERS = 200
_RECORDED_SCENE_PREFIX = "recorded "
_FIX_DRAFT_NOTICE = translatable("The draft has errors; the JSON tab lists them by line.")
_NO_ENTRY: Mapping[str, object] = {"form": None, "file": "", "problem": ""}
_NO_TRIAL: Mapping[str, object] = {"trial": None, "pieces": (), "problem": ""}


@value_class
class DraftPreviews:
    editor: PresetEditor
    composer: DraftComposer
    answers: AnswerLog

    async def list_answered_conversations(self, name: str) -> Sequence[str]:
        """Return the conversations that a preset has answered in, newest first."""
        rows = (await self.answers.search(AnswerSearch(preset=name), _MAX_SEARCHED_ANSWERS)).answers
        return list(dict.fromkeys(one.conversation for one in rows))[:_MAX_RECORDED_SCENES]

    async def show(
        self, edited: EditedPreset, scene_id: str, *, may_spend: bool
    ) -> Mapping[str, object]:
        """Compose a scene's prompt with the draft or published version, or return a `problem`."""
        scene = await self.find_scene(edited.name, scene_id)
        preset = (await self.editor.check(edited.content)).preset
        if preset is None:
            return {"prompt": None, "problem": _FIX_DRAFT_NOTICE}
        version = None if edited.draft else edited.version
        receipt, problem = await self.compose_prompt(preset, version, scene, may_spend=may_spend)
        return {"prompt": receipt and view_prompt(receipt), "problem": problem}

    async def count_tokens(self, edited: EditedPreset, entry: int = 0) -> dict[str, int]:
        """Return the token counts of the texts used in prompts, by field name.

        `entry` is the number of a lorebook entry to include; 0 for none.
        """
        result = await self.editor.check(edited.content)
        if result.preset is None or result.value is None:
            return {}
        texts: dict[str, str] = {}
        for spec in list_field_specs():
            value = value_at(result.value, spec.path)
            if spec.kind == "long" and isinstance(value, str):
                texts[spec.name] = value
        try:
            texts |= await self._list_long_entry_texts(result.value, entry)
            preset = await self.prepare_preset(result.preset)
            counts = await self.composer.count_tokens(preset, list(texts.values()))
        except (UserError, BackendError, SettingsError):
            return {}  # the preview shows the reason
        return dict(zip(texts, counts, strict=True))

    async def _list_long_entry_texts(self, value: dict[str, object], number: int) -> dict[str, str]:
        if not number:
            return {}
        lorebook = (await self.editor.include_lorebook(value)).get("lorebook")
        form = make_entry_form(lorebook, number)
        fields = form.fields if form is not None else ()
        return {one.spec.name: one.texts[0] for one in fields if one.spec.kind == "long"}

    async def find_scene(self, name: str, scene_id: str) -> Scene:
        """Return a scene by its id; raises `RequestRefused` with 404 if there is none."""
        conversation = scene_id.removeprefix(_RECORDED_SCENE_PREFIX)
        scene = make_sample_scene(scene_id, name) if scene_id in SAMPLE_SCENES else None
        is_recorded = scene_id.startswith(_RECORDED_SCENE_PREFIX)
        if is_recorded and conversation in await self.list_answered_conversations(name):
            scene = await self.composer.find_recorded_scene(conversation)
        if scene is not None:
            return scene
        raise RequestRefused(404, translatable("There is no such conversation."))

    async def compose_prompt(
        self, preset: Preset, version: int | None, scene: Scene, *, may_spend: bool
    ) -> tuple[Receipt | None, str]:
        """Compose the prompt for a scene; return its receipt, or the reason why that fails."""
        try:
            preset = await self.prepare_preset(preset)
            return await self.composer.compose(preset, version, scene, may_spend=may_spend), ""
        except (UserError, BackendError, SettingsError) as error:
            return None, error.text

    async def prepare_preset(self, preset: Preset) -> Preset:
        """Load the files of a preset, and prepare its model; raises `SettingsError`."""
        return self.editor.prepare_preset(await asyncio.to_thread(self.editor.load_files, preset))

    async def find_prepared_preset(self, name: str) -> Preset:
        """Return the prepared draft of a preset or, if there is none, the published version."""
        edited = await self.editor.open_preset(name)
        return await self.prepare_preset(await self.editor.parse_preset(edited))


def make_recorded_scene_id(conversation: str) -> str:
    return f"{_RECORDED_SCENE_PREFIX}{conversation}"


async def open_entry(
    editor: PresetEditor, value: dict[str, object] | None, number: int
) -> Mapping[str, object]:
    """Return a lorebook entry's form (None for number 0) and the lorebook's file, if any."""
    if value is None:
        return {**_NO_ENTRY, "problem": translatable("The draft is not valid JSON. Fix it first.")}
    try:
        lorebook = (await editor.include_lorebook(value)).get("lorebook")
    except (UserError, SettingsError) as error:
        return {**_NO_ENTRY, "problem": error.text}
    file = value.get("lorebook")
    file_name = file if isinstance(file, str) else ""
    return {**_NO_ENTRY, "form": make_entry_form(lorebook, number), "file": file_name}


async def view_lorebook(
    editor: PresetEditor, edited: EditedPreset, text: str
) -> Mapping[str, object]:
    """Show which entries of the draft's lorebook a text would activate, or a `problem`."""
    preset = (await editor.check(edited.content)).preset
    if preset is None:
        return _NO_TRIAL
    try:
        loaded_preset = await asyncio.to_thread(editor.load_files, preset)
    except (UserError, SettingsError) as error:
        return {**_NO_TRIAL, "problem": error.text}
    lorebook = loaded_preset.parsed_lorebook
    if lorebook is None:
        return _NO_TRIAL
    counter_name = preset.token_counter
    counter = get_counter(counter_name) if counter_name else get_counter_for_model(preset.model)
    await counter.load()
    limit = preset.max_input_tokens
    max_tokens = limit // _LOREBOOK_PROMPT_DIVISOR if limit else _DEFAULT_LOREBOOK_TOKENS
    trial = await asyncio.to_thread(try_lorebook, lorebook, text, budget=max_tokens, count=counter)
    marks = [(one, PieceKind.KEY) for one in trial.key_ranges]
    return {**_NO_TRIAL, "trial": trial, "pieces": list(cut_at_marks(text, marks))}
