"""Show what a model would read of a draft, on a sample or on a recorded conversation."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from bot.chat.console.answers import AnswerSearch
from bot.chat.console.scene import Scene
from bot.chat.receipt import Receipt
from bot.console.playground.prompt_view import PromptView, view_prompt
from bot.console.presets.editing import EditedPreset, PresetEditing
from bot.console.presets.form.fields import field_specs
from bot.console.presets.form.lorebook_entries import entry_form
from bot.console.presets.trial.sample_scenes import SAMPLE_SCENES
from bot.errors import BackendError, RequestRefused, SettingsError, UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import AnswerLog
from bot.prompting.draft.token_shares import prompt_tokens
from bot.prompting.presets.preset import Preset
from bot.texts.text import Text, text_of, translatable

_MAX_RECORDED = 24
_ANSWERS_SEARCHED = 200
_RECORDED = "recorded "
_MEND_FIRST = translatable("The draft has mistakes; the JSON tells them by line.")


class DraftComposer(Protocol):
    """Composes and counts as for a real answer; nothing is asked or stored."""

    async def compose(
        self, preset: Preset, version: int | None, scene: Scene, *, may_spend: bool
    ) -> Receipt:
        """Return the receipt of the answer to a scene, without the answer.

        Unless it `may_spend`, what costs money is left out.

        Raises:
            UserError: the required parts exceed the budget.
            BackendError: the backend cannot count.
        """
        ...

    async def count(self, preset: Preset, texts: Sequence[str]) -> Sequence[int]:
        """Return the tokens of texts as the preset's model counts them."""
        ...

    async def recorded(self, conversation: str) -> Scene | None:
        """Return the newest message of a conversation; None if there is none to answer."""
        ...


@frozen_dataclass
class ShownDraft:
    """What a model would read of a draft; else why it would read nothing."""

    prompt: PromptView | None = None
    more_tokens: int | None = None
    """Than of the published version; None: there is none, or it cannot be composed."""
    problem: str = ""


@frozen_dataclass
class DraftPreviews:
    """Composes drafts."""

    editing: PresetEditing
    composer: DraftComposer
    answers: AnswerLog

    async def scenes(self, name: str) -> Sequence[tuple[str, Text | str]]:
        """Return the scenes that a preset can be tried on: samples, then its conversations."""
        samples = [(one.id, one.title) for one in SAMPLE_SCENES]
        return [*samples, *((recorded_scene_id(one), one) for one in await self.recorded(name))]

    async def recorded(self, name: str) -> Sequence[str]:
        """Return the conversations in which a preset answered, newest first."""
        found = await self.answers.search(AnswerSearch(preset=name), _ANSWERS_SEARCHED)
        return list(dict.fromkeys(one.conversation for one in found.answers))[:_MAX_RECORDED]

    async def show(self, edited: EditedPreset, scene_id: str, *, may_spend: bool) -> ShownDraft:
        """Compose the prompt of the draft, or of the published version where there is none.

        Raises:
            RequestRefused: 404: there is no such scene.
            StoreError: the history cannot be read.
        """
        scene = await self.scene(edited.name, scene_id)
        preset = (await self.editing.check(edited.content)).preset
        if preset is None:
            return ShownDraft(problem=_MEND_FIRST)
        try:
            version = None if edited.draft else edited.version
            receipt = await self.compose(preset, version, scene, may_spend=may_spend)
        except UserError as error:
            return ShownDraft(problem=error.text)
        except BackendError as error:
            return ShownDraft(problem=error.notice)
        more = await self._more_tokens(edited, receipt, scene, may_spend=may_spend)
        return ShownDraft(view_prompt(receipt), more)

    async def count(self, edited: EditedPreset, entry: int = 0) -> dict[str, int]:
        """Return the tokens of the texts that stand in prompts, by the name of their field.

        Args:
            edited: the preset.
            entry: the lorebook entry whose text is counted as well; 0: none.
        """
        checked = await self.editing.check(edited.content)
        if checked.preset is None or checked.value is None:
            return {}
        texts: dict[str, str] = {}
        for spec in field_specs():
            value = spec.value_in(checked.value)
            if spec.kind == "long" and isinstance(value, str):
                texts[spec.name] = value
        try:
            texts |= await self._entry_text(checked.value, entry)
            preset = await self.ready(checked.preset)
            counts = await self.composer.count(preset, list(texts.values()))
        except (UserError, BackendError):
            return {}  # the preview tells why
        return dict(zip(texts, counts, strict=True))

    async def _entry_text(self, value: dict[str, object], number: int) -> dict[str, str]:
        if not number:
            return {}
        book = (await self.editing.with_lorebook(value)).get("lorebook")
        form = entry_form(book, number)
        fields = form.fields if form is not None else ()
        return {one.spec.name: one.texts[0] for one in fields if one.spec.kind == "long"}

    async def scene(self, name: str, scene_id: str) -> Scene:
        """Return a scene by its id; raises `RequestRefused` with 404 if there is none."""
        sample = next((one for one in SAMPLE_SCENES if one.id == scene_id), None)
        if sample is not None:
            return sample.for_preset(name)
        conversation = scene_id.removeprefix(_RECORDED)
        if scene_id.startswith(_RECORDED) and conversation in await self.recorded(name):
            found = await self.composer.recorded(conversation)
            if found is not None:
                return found
        raise RequestRefused(404, translatable("There is no such conversation."))

    async def compose(
        self, preset: Preset, version: int | None, scene: Scene, *, may_spend: bool
    ) -> Receipt:
        """Return the receipt of the answer to a scene, without the answer.

        Raises:
            UserError: the preset cannot be used here, or its required parts exceed the budget.
            BackendError: the backend cannot count.
        """
        ready = await self.ready(preset)
        return await self.composer.compose(ready, version, scene, may_spend=may_spend)

    async def ready(self, preset: Preset) -> Preset:
        """Return a preset as it would answer; raises `UserError` where it could not."""
        complete = await asyncio.to_thread(self.editing.complete, preset)
        try:
            return self.editing.prepare(complete)
        except SettingsError as error:
            raise UserError(text_of(error)) from None

    async def find_ready(self, name: str) -> Preset:
        """Return the draft of a preset as it would answer, or the published version without one.

        Raises:
            RequestRefused: 404: there is no such preset.
            UserError: the draft has mistakes, or cannot be used here.
        """
        edited = await self.editing.open(name)
        preset = (await self.editing.check(edited.content)).preset
        if preset is None:
            raise UserError(_MEND_FIRST)
        return await self.ready(preset)

    async def _more_tokens(
        self, edited: EditedPreset, receipt: Receipt, scene: Scene, *, may_spend: bool
    ) -> int | None:
        published = (await self.editing.check(edited.published)).preset
        if edited.draft is None or published is None:
            return None
        try:
            before = await self.compose(published, edited.version, scene, may_spend=may_spend)
        except (UserError, BackendError):
            return None
        return prompt_tokens(receipt) - prompt_tokens(before)


def recorded_scene_id(conversation: str) -> str:
    """Return the id of the scene of a recorded conversation."""
    return f"{_RECORDED}{conversation}"
