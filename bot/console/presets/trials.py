"""Test a draft before it is published: on recorded conversations, and by asking its model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TypeAlias

from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.drafts import Scene
from bot.chat.prompt import Prompt
from bot.chat.receipt import Receipt
from bot.console.differences import DifferingPiece, differing_pieces
from bot.console.presets.api import preset_path
from bot.console.presets.editing import EditedPreset
from bot.console.presets.preview import DraftPreviews, recorded_scene_id
from bot.console.routes import ConsoleRequest, Page, RouteGroup, route
from bot.errors import BackendError, RequestRefused, UserError
from bot.prompting.fit import prompt_tokens
from bot.prompting.presets.preset import Preset
from bot.replying.generate import GeneratedAnswer
from bot.texts.text import translatable
from bot.value_class import value_class

Ask: TypeAlias = Callable[[Preset, Prompt, str], Awaitable[GeneratedAnswer]]
"""Asks the model of a preset, in the name of the operator and for a conversation."""


class SceneForm(BaseModel):
    scene: str = Field("tavern", max_length=400, description="A sample, or a conversation.")
    part: bool = Field(default=False, description="Whether a script shows it on its own page.")


class TrialOutcome(StrEnum):
    """The effect of the draft on a conversation."""

    SAME = "same"
    """The prompt is identical."""
    DIFFERS = "differs"
    OVER = "over"
    """Something no longer fits, or the prompt can no longer be composed."""


@value_class
class ConversationTrial:
    """One recorded conversation with the draft."""

    conversation: str
    scene: str
    """What the preview and the answers are asked for by."""
    outcome: TrialOutcome
    tokens_before: int | None
    tokens: int | None
    """Absent: the prompt cannot be composed."""
    problem: str


@value_class
class TrialReport:
    trials: Sequence[ConversationTrial]


@value_class
class TrialAnswer:
    """An answer of one version to a scene."""

    version: int | None
    """Absent: of the draft."""
    text: str
    seconds: float = 0.0
    problem: str = ""
    """Why there is no text."""


@value_class
class TrialAnswerList:
    """The answers of the published version and of the draft to one scene."""

    answers: Sequence[TrialAnswer]
    differ: bool


@value_class
class TrialPages(RouteGroup):
    """Shows what a draft changes; questions count as usage, and no history keeps them."""

    previews: DraftPreviews
    ask_model: Ask

    @route("GET /presets/{name}/test", Scope.READ)
    async def test_page(self, request: ConsoleRequest, name: str) -> Page:
        trials = (await self.test(request, name)).trials
        outcomes = [one.outcome for one in trials]
        return Page(
            "presets/test.html",
            {
                "edited": await self.previews.editing.open(name),
                "trials": trials,
                "counts": {one.value: outcomes.count(one) for one in TrialOutcome},
                "base": preset_path(name),
            },
        )

    @route("POST /api/v1/presets/{name}/test", Scope.READ, errors={422: "The draft has mistakes."})
    async def test(self, request: ConsoleRequest, name: str) -> TrialReport:
        """Compose the draft for recorded conversations; nothing is asked.

        What costs money is left out unless the caller may spend.
        """
        edited = await self.previews.editing.open(name)
        before, draft = await self._presets(edited)
        if before is None:
            raise UserError(translatable("Nothing was answered with this preset yet."))
        trials = []
        for conversation in await self.previews.recorded(name):
            scene = await self.previews.composer.recorded(conversation)
            if scene is not None:
                may_spend = request.caller.may_spend
                old, _ = await self._compose(before, scene, may_spend=may_spend)
                new, problem = await self._compose(draft, scene, may_spend=may_spend)
                trials.append(_trial(conversation, old, new, problem))
        return TrialReport(trials)

    @route("POST /presets/{name}/ask", Scope.OPERATE)
    async def ask_by_form(self, name: str, form: SceneForm) -> Page:
        answers, pieces = await self._ask(name, form)
        return Page(
            "presets/answers.html" if form.part else "presets/asked.html",
            {
                "answers": answers,
                "pieces": pieces,
                "differ": _differ(pieces),
                "name": name,
                "base": preset_path(name),
            },
        )

    @route("POST /api/v1/presets/{name}/ask", Scope.OPERATE)
    async def ask(self, name: str, form: SceneForm) -> TrialAnswerList:
        """Ask the published version and the draft, which counts as usage."""
        answers, pieces = await self._ask(name, form)
        return TrialAnswerList(answers, _differ(pieces))

    async def _ask(
        self, name: str, form: SceneForm
    ) -> tuple[Sequence[TrialAnswer], Sequence[DifferingPiece]]:
        """Return the answers, and how two of them differ."""
        edited = await self.previews.editing.open(name)
        before, draft = await self._presets(edited)
        scene = await self.previews.scene(name, form.scene)
        tasks = []
        async with asyncio.TaskGroup() as group:
            if before is not None:
                tasks.append(group.create_task(self._answer(before, edited.version, scene)))
            if edited.draft is not None or before is None:
                tasks.append(group.create_task(self._answer(draft, None, scene)))
        answers = [task.result() for task in tasks]
        texts = [one.text for one in answers]
        return answers, differing_pieces(*texts) if len(texts) > 1 and all(texts) else []

    async def _presets(self, edited: EditedPreset) -> tuple[Preset | None, Preset]:
        """Return the published version, if there is one, and the draft."""
        draft = await self.previews.editing.preset_of(edited)
        if not edited.published:
            return None, draft
        return (await self.previews.editing.check(edited.published)).preset, draft

    async def _compose(
        self, preset: Preset, scene: Scene, *, may_spend: bool
    ) -> tuple[Receipt | None, str]:
        """Return the prompt, or else why it cannot be composed."""
        try:
            return await self.previews.compose(preset, None, scene, may_spend=may_spend), ""
        except UserError as error:
            return None, error.text
        except BackendError as error:
            return None, error.notice

    async def _answer(self, preset: Preset, version: int | None, scene: Scene) -> TrialAnswer:
        receipt, problem = await self._compose(preset, scene, may_spend=True)
        if receipt is None:
            return TrialAnswer(version, "", problem=problem)
        try:
            conversation = scene.said.address.conversation
            ready = await self.previews.ready(preset)
            made = await self.ask_model(ready, receipt.prompt, conversation)
        except BackendError as error:
            return TrialAnswer(version, "", problem=error.notice)
        except (UserError, RequestRefused) as error:
            return TrialAnswer(version, "", problem=error.text)
        return TrialAnswer(version, made.text, made.seconds)


def _trial(
    conversation: str, old: Receipt | None, new: Receipt | None, problem: str
) -> ConversationTrial:
    if new is None or (old is not None and _dropped_turns(new) > _dropped_turns(old)):
        outcome = TrialOutcome.OVER
    elif old is not None and (old.provider, old.prompt) == (new.provider, new.prompt):
        outcome = TrialOutcome.SAME
    else:
        outcome = TrialOutcome.DIFFERS
    before, tokens = (None if one is None else prompt_tokens(one) for one in (old, new))
    scene = recorded_scene_id(conversation)
    return ConversationTrial(conversation, scene, outcome, before, tokens, problem)


def _dropped_turns(receipt: Receipt) -> int:
    return sum(one.count for one in receipt.dropped if one.section == "history")


def _differ(pieces: Sequence[DifferingPiece]) -> bool:
    return any(one.change != "same" for one in pieces)
