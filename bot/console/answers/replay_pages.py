"""Ask a model again for a stored answer, and show both beside each other."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from pydantic import BaseModel, Field, field_validator

from bot.chat.access import Scope
from bot.chat.console.answers import StoredAnswer
from bot.chat.console.replays import ReplayChanges, ReplayedAnswer
from bot.chat.usage import MICROS, format_cost
from bot.console.answers.answer_models import ShownMessage, answer_row
from bot.console.answers.differences import differing_pieces
from bot.console.answers.masking import find_answer, masked_answer
from bot.console.answers.prompt_view import instructions_of, joined_messages
from bot.console.routes import (
    ConsoleRequest,
    Page,
    RouteGroup,
    route,
)
from bot.errors import BackendError, RequestRefused
from bot.ports import AnswerLog

Replay: TypeAlias = Callable[[StoredAnswer, ReplayChanges], Awaitable[ReplayedAnswer]]
"""Asks a model again."""


class ReplayForm(BaseModel):
    """What is to be different; what is empty stays as it was."""

    preset: str = Field("", max_length=500, description="Whose model and parameters are used.")
    system: str | None = Field(
        None, max_length=200_000, description="What the system message says instead."
    )
    draft: str = Field(
        "",
        max_length=500,
        description="The preset from whose draft the prompt is composed anew, and whose model"
        " answers; without a draft from its published version. The others do not count then.",
    )

    @field_validator("system")
    @classmethod
    def _with_plain_line_breaks(cls, given: str | None) -> str | None:
        return given and given.replace("\r\n", "\n").replace("\0", "")  # forms send CRLF


class ReplayResult(BaseModel):
    """Another answer to the same prompt, or to a changed one; no history keeps it."""

    answer: str
    messages: list[ShownMessage] = Field(description="The prompt that was sent.")
    reason: str | None = Field(description="Why it ended; null: it was interrupted.")
    provider: str
    model: str
    prompt_tokens: int
    output_tokens: int
    first_word_seconds: float | None
    seconds: float
    cost: float | None = Field(description="In US dollars; null: not known.")


class ReplayPages(RouteGroup):
    """Sends stored prompts again.

    Args:
        answers: the stored answers.
        replay: asks a model.
        mask: removes secrets from what is shown.
    """

    def __init__(self, answers: AnswerLog, replay: Replay, mask: Callable[[str], str]) -> None:
        self._answers = answers
        self._replay = replay
        self._mask = mask

    async def _ask(self, request: ConsoleRequest) -> tuple[StoredAnswer, ReplayedAnswer]:
        stored = await find_answer(self._answers, request.number("number"))
        shown = masked_answer(stored, self._mask)
        form = request.body(ReplayForm)
        before = instructions_of(shown.receipt.prompt).replace("\r\n", "\n")
        # Browsers leave out a line break at the beginning of a text area.
        is_same = form.system is None or form.system.lstrip("\n") == before.lstrip("\n")
        system = None if is_same else form.system
        changes = ReplayChanges(form.preset, system, form.draft)
        try:
            made = await self._replay(stored, changes)
        except BackendError as error:
            raise RequestRefused(502, error.notice) from error
        return shown, made

    @route(
        "POST /api/v1/answers/{number}/replay",
        Scope.OPERATE,
        "Ask a model again with the stored prompt; no history keeps it.",
        body=ReplayForm,
        answer=ReplayResult,
        errors={502: "The model does not answer."},
    )
    async def _result(self, request: ConsoleRequest) -> ReplayResult:
        _, made = await self._ask(request)
        return ReplayResult(
            answer=self._mask(made.text),
            messages=[
                ShownMessage(role=one.role, content=self._mask(one.content))
                for one in made.prompt.messages
            ],
            reason=made.reason.value if made.reason else None,
            provider=made.provider,
            model=made.model,
            prompt_tokens=made.prompt_tokens,
            output_tokens=made.output_tokens,
            first_word_seconds=made.first_word_seconds,
            seconds=made.seconds,
            cost=None if made.cost is None else made.cost / MICROS,
        )

    @route(
        "POST /answers/{number}/replay",
        Scope.OPERATE,
        "Ask a model again, and show both answers.",
        body=ReplayForm,
    )
    async def _page(self, request: ConsoleRequest) -> Page:
        stored, made = await self._ask(request)
        receipt, text = stored.receipt, self._mask(made.text)
        prompts = joined_messages(receipt.prompt), self._mask(joined_messages(made.prompt))
        costs = (receipt.charge.cost, made.cost)
        return Page(
            "replay.html",
            {
                "stored": answer_row(stored),
                "stored_text": receipt.answer,
                "made": made,
                "made_text": text,
                "costs": [None if one is None else format_cost(one) for one in costs],
                "differences": differing_pieces(receipt.answer, text),
                "is_same_prompt": prompts[0] == prompts[1],
                "prompt": differing_pieces(*prompts),
            },
        )
