"""Test a draft before it is published: on recorded conversations, and by asking its model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Protocol
from urllib.parse import quote

from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.drafts import Scene
from bot.chat.prompt import Prompt
from bot.chat.receipt import Receipt
from bot.console.differences import DifferingPiece, differing_pieces
from bot.console.presets.api import preset_name
from bot.console.presets.editing import EditedPreset
from bot.console.presets.preview import DraftPreviews, recorded_scene_id
from bot.console.routes import (
    ConsoleRequest,
    Page,
    RouteGroup,
    route,
)
from bot.errors import BackendError, RequestRefused, UserError
from bot.prompting.fit import prompt_tokens
from bot.prompting.presets.preset import Preset
from bot.texts.text import translatable
from bot.value_class import value_class


class TrialOutcome(StrEnum):
    """What becomes of a conversation with the draft."""

    SAME = "same"
    """The prompt is the same, to the letter."""
    DIFFERS = "differs"
    OVER = "over"
    """Something is left out that fits today, or the prompt cannot be composed any more."""


@value_class
class ConversationTrial:
    """One conversation with the draft."""

    conversation: str
    scene: str
    outcome: TrialOutcome
    tokens_before: int | None
    tokens: int | None
    """None: the prompt cannot be composed."""
    problem: str = ""


class AskedModel(Protocol):
    """What a model said, as far as it is shown."""

    @property
    def text(self) -> str: ...

    @property
    def seconds(self) -> float: ...


@value_class
class TrialAnswer:
    """An answer of one version to a scene."""

    version: int | None
    """None: of the draft."""
    text: str
    seconds: float = 0.0
    problem: str = ""


@value_class
class TrialAnswers:
    """The answers of the published version and of the draft to one scene."""

    answers: Sequence[TrialAnswer]
    pieces: Sequence[DifferingPiece]
    """What differs; empty for one answer alone."""

    @property
    def differ(self) -> bool:
        return any(one.change != "same" for one in self.pieces)


Ask = Callable[[Preset, Prompt, str], Awaitable[AskedModel]]
"""Asks the model of a preset, in the name of the operator and for a conversation."""


@value_class
class DraftTrials:
    """Tests drafts; what is asked counts as usage, and no history keeps it."""

    previews: DraftPreviews
    ask: Ask

    async def test(self, edited: EditedPreset, *, may_spend: bool) -> Sequence[ConversationTrial]:
        """Compose the newest prompt of each recorded conversation with the draft, and as it is.

        Unless it `may_spend`, what costs money is left out of both.

        Raises:
            UserError: the draft has mistakes, or was never published.
            StoreError: a history cannot be read.
        """
        before, draft = await self._presets(edited)
        if before is None:
            raise UserError(translatable("Nothing was answered with this preset yet."))
        trials = []
        for conversation in await self.previews.recorded(edited.name):
            scene = await self.previews.composer.recorded(conversation)
            if scene is not None:
                trials.append(
                    await self._try(conversation, scene, before, draft, may_spend=may_spend)
                )
        return trials

    async def answer(self, edited: EditedPreset, scene_id: str) -> TrialAnswers:
        """Ask the published version and the draft for an answer to a scene.

        Raises:
            RequestRefused: 404: there is no such scene.
            UserError: the draft has mistakes.
        """
        before, draft = await self._presets(edited)
        scene = await self.previews.scene(edited.name, scene_id)
        tasks = []
        async with asyncio.TaskGroup() as group:
            if before is not None:
                tasks.append(group.create_task(self._answer(before, edited.version, scene)))
            if edited.draft is not None or before is None:
                tasks.append(group.create_task(self._answer(draft, None, scene)))
        answers = [task.result() for task in tasks]
        texts = [one.text for one in answers]
        pieces = differing_pieces(texts[0], texts[1]) if len(texts) > 1 and all(texts) else []
        return TrialAnswers(answers, pieces)

    async def _presets(self, edited: EditedPreset) -> tuple[Preset | None, Preset]:
        check = self.previews.editing.check
        draft = (await check(edited.content)).preset
        if draft is None:
            raise UserError(translatable("Mend the mistakes of the draft first."))
        published = (await check(edited.published)).preset if edited.published else None
        return published, draft

    async def _try(
        self, conversation: str, scene: Scene, before: Preset, draft: Preset, *, may_spend: bool
    ) -> ConversationTrial:
        old, _ = await self._compose(before, scene, may_spend=may_spend)
        new, problem = await self._compose(draft, scene, may_spend=may_spend)
        if new is None or (old is not None and _dropped(new) > _dropped(old)):
            outcome = TrialOutcome.OVER
        elif old is not None and _sent(old) == _sent(new):
            outcome = TrialOutcome.SAME
        else:
            outcome = TrialOutcome.DIFFERS
        return ConversationTrial(
            conversation,
            recorded_scene_id(conversation),
            outcome,
            _tokens(old),
            _tokens(new),
            problem,
        )

    async def _compose(
        self, preset: Preset, scene: Scene, *, may_spend: bool
    ) -> tuple[Receipt | None, str]:
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
            made = await self.ask(ready, receipt.prompt, conversation)
        except BackendError as error:
            return TrialAnswer(version, "", problem=error.notice)
        except (UserError, RequestRefused) as error:
            return TrialAnswer(version, "", problem=error.text)
        return TrialAnswer(version, made.text, made.seconds)


def _tokens(receipt: Receipt | None) -> int | None:
    return None if receipt is None else prompt_tokens(receipt)


def _sent(receipt: Receipt) -> tuple[str, Prompt]:
    return receipt.provider, receipt.prompt


def _dropped(receipt: Receipt) -> int:
    """Return how many messages of the history did not fit."""
    return sum(one.count for one in receipt.dropped if one.section == "history")


class SceneForm(BaseModel):
    scene: str = Field("tavern", max_length=400, description="A sample, or a conversation.")
    part: bool = Field(default=False, description="Whether a script shows it on its own page.")


class TrialRow(BaseModel):
    """One recorded conversation with the draft."""

    conversation: str
    scene: str = Field(description="What the preview and the answers are asked for by.")
    outcome: TrialOutcome
    tokens_before: int | None
    tokens: int | None = Field(description="Absent: the prompt cannot be composed.")
    problem: str


class TrialReport(BaseModel):
    trials: list[TrialRow]


class TrialAnswerRow(BaseModel):
    version: int | None = Field(description="Absent: of the draft.")
    text: str
    seconds: float
    problem: str = Field(description="Why there is no text.")


class TrialAnswerList(BaseModel):
    answers: list[TrialAnswerRow]
    differ: bool


class TrialPages(RouteGroup):
    """Shows what a draft changes."""

    def __init__(self, trials: DraftTrials) -> None:
        self._trials = trials

    @route(
        "GET /presets/{name}/test",
        Scope.READ,
        "The draft on recorded conversations; nothing is asked.",
    )
    async def _test_page(self, request: ConsoleRequest) -> Page:
        edited = await self._trials.previews.editing.open(preset_name(request))
        trials = await self._trials.test(edited, may_spend=request.caller.may_spend)
        return Page(
            "presets/test.html",
            {
                "edited": edited,
                "trials": trials,
                "counts": {
                    one.value: sum(trial.outcome is one for trial in trials) for one in TrialOutcome
                },
                "base": f"/presets/{quote(edited.name, safe='')}",
            },
        )

    @route(
        "POST /api/v1/presets/{name}/test",
        Scope.READ,
        "Compose the draft for recorded conversations; nothing is asked.",
        answer=TrialReport,
        errors={422: "The draft has mistakes."},
    )
    async def _test(self, request: ConsoleRequest) -> TrialReport:
        edited = await self._trials.previews.editing.open(preset_name(request))
        rows = [
            TrialRow(
                conversation=one.conversation,
                scene=one.scene,
                outcome=one.outcome,
                tokens_before=one.tokens_before,
                tokens=one.tokens,
                problem=one.problem,
            )
            for one in await self._trials.test(edited, may_spend=request.caller.may_spend)
        ]
        return TrialReport(trials=rows)

    @route(
        "POST /presets/{name}/ask",
        Scope.OPERATE,
        "Ask the published version and the draft.",
        body=SceneForm,
    )
    async def _ask_by_form(self, request: ConsoleRequest) -> Page:
        form = request.body(SceneForm)
        name = preset_name(request)
        template = "presets/answers.html" if form.part else "presets/asked.html"
        values = {
            "asked": await self._answers(request),
            "name": name,
            "base": f"/presets/{quote(name, safe='')}",
        }
        return Page(template, values)

    @route(
        "POST /api/v1/presets/{name}/ask",
        Scope.OPERATE,
        "Ask the published version and the draft, which counts as usage.",
        body=SceneForm,
        answer=TrialAnswerList,
    )
    async def _ask(self, request: ConsoleRequest) -> TrialAnswerList:
        asked = await self._answers(request)
        rows = [
            TrialAnswerRow(
                version=one.version, text=one.text, seconds=one.seconds, problem=one.problem
            )
            for one in asked.answers
        ]
        return TrialAnswerList(answers=rows, differ=asked.differ)

    async def _answers(self, request: ConsoleRequest) -> TrialAnswers:
        edited = await self._trials.previews.editing.open(preset_name(request))
        return await self._trials.answer(edited, request.body(SceneForm).scene)
