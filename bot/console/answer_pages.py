"""Answers: the list, one answer, its prompt, a comparison, and a replay."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlencode

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, field_validator

from bot.backends.exact_prompt import ExactPromptWriter
from bot.backends.spec import ProviderSettings
from bot.chat.access import Scope
from bot.chat.answers import AnswerSearch, StoredAnswer
from bot.chat.incoming import parse_address
from bot.chat.prompt import Prompt, PromptToken
from bot.chat.usage import MICROS
from bot.console.answer_details import (
    budget_segments,
    costs_elsewhere,
    find_answer,
    masked_answer,
    used_parameters,
    waterfall,
    with_masked_text,
)
from bot.console.differences import differing_pieces
from bot.console.operator_requests import OperatorAnswer
from bot.console.prompt_view import described_pieces, joined_messages, prompt_sections, token_pieces
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, redirect, route
from bot.errors import BackendError, BackendUnavailable, RequestRefused
from bot.ports import Backend
from bot.prompting.fit import prompt_tokens, tokens_by_section
from bot.storage.operation import SqlMessageNotes
from bot.storage.presets import PresetDrafts, PresetVersions
from bot.storage.reports import AnswerLog
from bot.telemetry.logs import ERROR_NOTES, parse_failure_notes
from bot.texts.text import translatable
from bot.value_class import value_class

_ANSWERS_PER_PAGE = 50
_EXCERPT_CHARS = 200
_MAX_ERRORS = 200
_MAX_NUMBER = 2**62
_NO_TOKENS = translatable(
    "Only local models show their tokens; this provider counts tokens itself."
)


class AnswerQuery(BaseModel):
    """Filters for answers; without any, all answers match."""

    model_config = ConfigDict(allow_inf_nan=False)

    channel: str = Field("", max_length=500, description="The key of a conversation.")
    preset: str = Field("", max_length=500)
    person: str = Field("", max_length=500, description="Such as telegram:5.")
    model: str = Field("", max_length=500, description="The model or its provider.")
    cost: float | Literal[""] = Field("", description="At least, in US dollars.")
    seconds: float | Literal[""] = Field("", description="At least.")
    cut_off: bool = Field(False, description="Only those that did not end by themselves.")
    left_out: bool = Field(False, description="Only those for which something was left out.")
    text: str = Field("", max_length=500, description="In the answer or the newest message.")
    before: int | None = Field(None, ge=0, lt=_MAX_NUMBER, description="Only smaller numbers.")

    @field_validator("channel", "preset", "person", "model", "text")
    @classmethod
    def _without_nul(cls, given: str) -> str:
        return given.replace("\0", "").strip()  # PostgreSQL has none

    def to_search(self) -> AnswerSearch:
        return AnswerSearch(
            conversation=self.channel,
            min_cost=None if self.cost == "" else _to_micros(self.cost),
            min_seconds=None if self.seconds == "" else self.seconds,
            **self.model_dump(exclude={"channel", "cost", "seconds", "state"}),
        )


def _to_micros(dollars: float) -> int:
    return round(min(max(dollars, 0.0), 1e9) * MICROS)


def _to_dollars(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS


_PromptForm: TypeAlias = Literal["text", "messages", "tokens"]
_AnswerNumber: TypeAlias = Annotated[int, Field(ge=0, lt=_MAX_NUMBER)]


@value_class
class AnswerRow:
    """One answer in the list."""

    number: int
    at: float
    """In Unix seconds."""
    channel: str
    person: str | None
    preset: str
    preset_version: int | None
    provider: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    limit: int | None
    """The token budget of the prompt."""
    queued_seconds: float
    first_word_seconds: float | None
    seconds: float
    reason: str | None
    """Why it ended; null: it was interrupted."""
    left_out: int
    """How many items were left out of the prompt."""
    cost: float | None
    """In US dollars; null: not known."""
    excerpt: str
    check: str
    """Why it was withheld, or shown unchecked, in English; usually empty."""


def answer_row(one: StoredAnswer) -> AnswerRow:
    receipt = one.receipt
    return AnswerRow(
        number=one.number,
        at=one.at,
        channel=one.conversation,
        person=receipt.charge.person,
        preset=receipt.preset,
        preset_version=receipt.preset_version,
        provider=receipt.provider,
        model=receipt.charge.model or receipt.prompt.model,
        prompt_tokens=prompt_tokens(receipt),
        cached_tokens=receipt.usage.cached_tokens,
        output_tokens=receipt.usage.output_tokens,
        limit=receipt.limit,
        queued_seconds=receipt.timings.queued_seconds,
        first_word_seconds=receipt.timings.first_word_seconds,
        seconds=receipt.timings.seconds,
        reason=receipt.reason,
        left_out=sum(item.count for item in receipt.dropped),
        cost=_to_dollars(receipt.charge.cost),
        excerpt=receipt.answer[:_EXCERPT_CHARS],
        check=receipt.check,
    )


class ListQuery(AnswerQuery):
    """What the page lists."""

    state: Literal["", "errors"] = ""


Replay: TypeAlias = Callable[[StoredAnswer, str, str], Awaitable[OperatorAnswer]]
_Preset = Annotated[str, Field(max_length=500, description="Whose model and parameters are used.")]
_Draft = Annotated[
    str,
    Field(
        max_length=500,
        description="The preset from whose draft the prompt is composed anew, and whose model"
        " answers; without a draft from its published version. Empty: the stored prompt is sent.",
    ),
]


@value_class
class AnswerPages(RouteGroup):
    navigation = (NavigationItem("/answers", translatable("Answers"), "answers"),)

    answers: AnswerLog
    prompts: ExactPromptWriter
    backends: Mapping[str, Backend]
    versions: PresetVersions
    providers: Mapping[str, ProviderSettings]
    presets: Collection[str]
    drafts: PresetDrafts
    replay: Replay
    notes: SqlMessageNotes

    @route("GET /api/v1/answers", Scope.READ)
    async def list_answers(
        self, query: AnswerQuery
    ) -> Mapping[str, Sequence[AnswerRow] | int | None]:
        """Search answers, newest first; `next_before` continues the search."""
        found = await self.answers.search(query.to_search(), _ANSWERS_PER_PAGE)
        masked = (with_masked_text(one, self.prompts.mask) for one in found.answers)
        return {"answers": [answer_row(one) for one in masked], "next_before": found.next_before}

    @route("GET /answers", Scope.READ)
    async def list_page(self, request: ConsoleRequest, query: ListQuery) -> Page:
        if query.state:
            notes = await self.notes.newest_of_kind(ERROR_NOTES, _MAX_ERRORS)
            return Page("errors.html", {"errors": parse_failure_notes(notes)})
        found = await self.list_answers(query)
        before = found["next_before"]
        older = urlencode({**dict(request.http.query), "before": before})
        return Page(
            "answers.html",
            {
                "found": found,
                "query": query,
                "older": None if before is None else f"/answers?{older}",
                "is_filtered": bool(request.http.query),
                "presets": sorted(self.presets),
            },
        )

    async def _find(self, number: int) -> StoredAnswer:
        return masked_answer(await find_answer(self.answers, number), self.prompts.mask)

    @route("GET /api/v1/answers/{number}", Scope.READ)
    async def show(self, number: int) -> Mapping[str, object]:
        """Get an answer with its text and the details of its prompt."""
        answer = await self._find(number)
        receipt = answer.receipt
        return {
            **asdict(answer_row(answer)),
            "answer": receipt.answer,
            "sections": tokens_by_section(receipt),
            "dropped": receipt.dropped,
            "parameters": receipt.prompt.parameters,
            "stop": receipt.prompt.stop,
            "feedback": await self.answers.find_feedback(number),
        }

    @route("GET /api/v1/answers/{number}/prompt", Scope.READ)
    async def show_prompt(
        self, number: int, form: _PromptForm = "messages"
    ) -> Mapping[str, str | Sequence[Mapping[str, str] | PromptToken]]:
        """Get the prompt of an answer, without secrets, in the requested form only."""
        answer = await self._find(number)
        shown: dict[str, str | Sequence[Mapping[str, str] | PromptToken]]
        shown = {"text": "", "messages": [], "tokens": []}
        match form:
            case "messages":
                shown["messages"] = _shown_messages(answer.receipt.prompt)
            case "tokens":
                shown["tokens"] = await self._tokens(answer)
            case "text":
                shown["text"] = (await self.prompts.describe(answer.receipt)).text
        return shown

    async def _tokens(self, answer: StoredAnswer) -> Sequence[PromptToken]:
        backend = self.backends.get(answer.receipt.provider)
        if backend is None or not backend.can_tokenize:
            raise RequestRefused(409, _NO_TOKENS)
        try:
            return await backend.tokenize(answer.receipt.prompt)
        except BackendUnavailable as error:
            raise RequestRefused(409, str(error)) from None

    @route("GET /answers/{number}", Scope.READ)
    async def answer_page(self, number: int, form: _PromptForm = "messages") -> Page:
        answer = await self._find(number)
        receipt = answer.receipt
        version, asked = None, reversed(receipt.prompt.messages)
        if receipt.preset_version is not None:
            version = await self.versions.find(receipt.preset, receipt.preset_version)
        return Page(
            "answer.html",
            {
                "answer": answer_row(answer),
                "text": receipt.answer,
                "question": next((one.content for one in asked if one.role == "user"), ""),
                "thoughts": receipt.thoughts,
                "feedback": await self.answers.find_feedback(number),
                "address": parse_address(answer.conversation),
                "received_at": receipt.timings.received_at,
                "form": form,
                "segments": budget_segments(receipt),
                "steps": waterfall(receipt, await self._delivered_seconds(answer)),
                "dropped": receipt.dropped,
                "dropped_tokens": sum(item.tokens or 0 for item in receipt.dropped),
                "parameters": used_parameters(receipt.prompt, version),
                "before": await self.answers.find_before(answer),
                "elsewhere": costs_elsewhere(receipt, self.providers),
                "presets": sorted(self.presets),
                "drafts": [one.name for one in await self.drafts.all()],
                **await self._prompt_values(answer, form),
            },
        )

    async def _delivered_seconds(self, answer: StoredAnswer) -> float | None:
        """Return how many seconds after the message the answer was delivered; None if unknown."""
        received = answer.receipt.timings.received_at
        sent = None if received is None else await self.answers.find_delivery(answer)
        return None if sent is None or received is None else max(0.0, sent - received)

    async def _prompt_values(self, answer: StoredAnswer, form: str) -> Mapping[str, object]:
        values: dict[str, object] = {"sections": [], "pieces": [], "problem": "", "details": {}}
        match form:
            case "messages":
                values["sections"] = prompt_sections(answer.receipt)
            case "tokens":
                try:
                    values["pieces"] = token_pieces(await self._tokens(answer), answer.receipt)
                except RequestRefused as error:
                    values["problem"] = error.text
            case _:
                description = await self.prompts.describe(answer.receipt)
                values["pieces"] = described_pieces(description, answer.receipt)
                values["details"] = description.details
        return values

    @route("GET /answers/{number}/compare", Scope.READ)
    async def choose_other(self, number: int, other: _AnswerNumber) -> web.Response:
        older, newer = sorted((number, other))
        return redirect(f"/answers/{newer}/compare/{older}")

    @route("GET /answers/{number}/compare/{other}", Scope.READ)
    async def comparison_page(self, number: int, other: int) -> Page:
        newer, older = await self._find(number), await self._find(other)
        prompts = [joined_messages(one.receipt.prompt) for one in (older, newer)]
        return Page(
            "comparison.html",
            {
                "older": answer_row(older),
                "newer": answer_row(newer),
                "prompt": await asyncio.to_thread(differing_pieces, *prompts),
                "answer": differing_pieces(older.receipt.answer, newer.receipt.answer),
            },
        )

    @route("POST /api/v1/answers/{number}/replay", Scope.OPERATE)
    @route("POST /answers/{number}/replay", Scope.OPERATE, template="replay.html")
    async def ask_again(
        self, number: int, preset: _Preset = "", draft: _Draft = ""
    ) -> Mapping[str, object]:
        """Repeat a stored request to a model; empty values keep the original ones.

        The answer is not added to any history. Answers and prompts are compared.
        """
        mask = self.prompts.mask
        found = await find_answer(self.answers, number)
        try:
            made = await self.replay(found, preset, draft)
        except BackendError as error:
            raise RequestRefused(502, error.notice) from error
        stored = masked_answer(found, mask)
        before, answer = stored.receipt.answer, mask(made.generated.text)
        prompts = joined_messages(stored.receipt.prompt), mask(joined_messages(made.prompt))
        return {
            "answer": answer,
            "messages": _shown_messages(made.prompt, mask),
            "reason": made.generated.reason,
            "provider": made.provider,
            "model": made.charge.model,
            "prompt_tokens": made.usage.prompt_tokens,
            "output_tokens": made.usage.output_tokens,
            "first_word_seconds": made.generated.first_word_seconds,
            "seconds": made.generated.seconds,
            "cost": _to_dollars(made.charge.cost),
            "stored": {**asdict(answer_row(stored)), "answer": before},
            "answer_pieces": differing_pieces(before, answer),
            "prompt_pieces": await asyncio.to_thread(differing_pieces, *prompts),
        }


def _shown_messages(
    prompt: Prompt, mask: Callable[[str], str] = lambda text: text
) -> Sequence[Mapping[str, str]]:
    return [{"role": one.role, "content": mask(one.content)} for one in prompt.messages]
