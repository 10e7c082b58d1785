"""The page that tests a draft on recorded conversations, and the answers of both versions."""

from urllib.parse import quote

from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.console.presets.preset_api import preset_name
from bot.console.presets.trial.trials import DraftTrials, TrialAnswers, TrialOutcome
from bot.console.routes import (
    ConsoleRequest,
    Page,
    RouteGroup,
    route,
)


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
