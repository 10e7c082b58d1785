"""Answers: the list, one answer, its prompt, its comparison with another one, its replay."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlencode

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, field_validator

from bot.backends.exact_prompt import ExactPromptWriter
from bot.backends.spec import ProviderSettings
from bot.chat.access import Scope
from bot.chat.answers import AnswerSearch, ReplayChanges, ReplayedAnswer, StoredAnswer
from bot.chat.incoming import address_of
from bot.chat.prompt import PromptDescription, PromptToken
from bot.chat.usage import MICROS, format_cost
from bot.console.answer_details import (
    UsedParameter,
    budget_segments,
    costs_elsewhere,
    find_answer,
    masked_answer,
    used_parameters,
    waterfall,
    with_masked_text,
)
from bot.console.differences import differing_pieces
from bot.console.prompt_view import (
    described_pieces,
    instructions_of,
    joined_messages,
    prompt_sections,
    token_pieces,
)
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, redirect, route
from bot.errors import BackendError, BackendUnavailable, RequestRefused
from bot.ports import Backend, LocalBackend
from bot.prompting.fit import prompt_tokens, tokens_by_section
from bot.storage.presets import PresetDrafts, PresetVersions
from bot.storage.reports import AnswerLog
from bot.texts.text import looked_up, translatable

_EXCERPT_CHARS = 200
_MAX_NUMBER = 2**62


class AnswerQuery(BaseModel):
    """Which answers are wanted; what is empty is no condition."""

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
            preset=self.preset,
            person=self.person,
            model=self.model,
            min_cost=None if self.cost == "" else _to_micros(self.cost),
            min_seconds=None if self.seconds == "" else self.seconds,
            cut_off=self.cut_off,
            left_out=self.left_out,
            text=self.text,
            before=self.before,
        )


def _to_micros(dollars: float) -> int:
    return round(min(max(dollars, 0.0), 1e9) * MICROS)


class ComparedAnswer(BaseModel):
    other: int = Field(ge=0, lt=_MAX_NUMBER)


class AnswerRow(BaseModel):
    """One answer in the list."""

    number: int
    at: float = Field(description="In Unix seconds.")
    channel: str
    person: str | None
    preset: str
    preset_version: int | None
    provider: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    limit: int | None = Field(description="The token budget of the prompt.")
    queued_seconds: float
    first_word_seconds: float | None
    seconds: float
    reason: str | None = Field(description="Why it ended; null: it was interrupted.")
    left_out: int = Field(description="How many items were left out of the prompt.")
    cost: float | None = Field(description="In US dollars; null: not known.")
    excerpt: str = Field(description="The beginning of the answer.")


class AnswerList(BaseModel):
    """A page of answers, newest first."""

    answers: list[AnswerRow]
    next_before: int | None = Field(description="What to search before for the next page.")


class LeftOutItem(BaseModel):
    section: str
    name: str
    why: str
    count: int
    tokens: int | None
    score: float | None


class AnswerDetail(AnswerRow):
    """One answer, and what it was made of."""

    answer: str
    sections: dict[str, int] = Field(description="The tokens of each section of the prompt.")
    dropped: list[LeftOutItem]
    parameters: dict[str, object]
    stop: list[str]


class ShownMessage(BaseModel):
    role: str
    content: str


class ShownToken(BaseModel):
    id: int
    text: str
    control: bool
    trusted: bool


class PromptQuery(BaseModel):
    form: Literal["text", "messages", "tokens"] = "messages"


class ShownPrompt(BaseModel):
    """A prompt in the form that was asked for; the others are empty."""

    text: str = ""
    messages: list[ShownMessage] = []
    tokens: list[ShownToken] = []


def answer_row(one: StoredAnswer) -> AnswerRow:
    receipt = one.receipt
    cost = receipt.charge.cost
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
        reason=receipt.reason.value if receipt.reason else None,
        left_out=sum(item.count for item in receipt.dropped),
        cost=None if cost is None else cost / MICROS,
        excerpt=receipt.answer[:_EXCERPT_CHARS],
    )


def answer_detail(one: StoredAnswer) -> AnswerDetail:
    receipt = one.receipt
    return AnswerDetail(
        **answer_row(one).model_dump(),
        answer=receipt.answer,
        sections=tokens_by_section(receipt),
        dropped=[
            LeftOutItem(
                section=item.section,
                name=item.name,
                why=item.why,
                count=item.count,
                tokens=item.tokens,
                score=item.score,
            )
            for item in receipt.dropped
        ],
        parameters=dict(receipt.prompt.parameters),
        stop=list(receipt.prompt.stop),
    )


_ANSWERS_PER_PAGE = 50
_NO_TOKENS = translatable(
    "The tokens are known to models on this machine only; this provider counts them itself."
)


class AnswerPages(RouteGroup):
    """Shows what was answered, and from what.

    Args:
        answers: the stored answers.
        prompts: describes what a model was sent.
        backends: the providers, of which some can tell their tokens.
        versions: the presets as they were.
        providers: what their models cost.
        presets: whose model can be asked again; none where there is nobody to ask.
        drafts: what prompts can be composed from anew, beside the presets.
    """

    navigation = (NavigationItem("/answers", translatable("Answers"), "answers"),)

    def __init__(
        self,
        answers: AnswerLog,
        prompts: ExactPromptWriter,
        backends: Mapping[str, Backend],
        versions: PresetVersions,
        providers: Mapping[str, ProviderSettings],
        presets: Collection[str] = (),
        drafts: PresetDrafts | None = None,
    ) -> None:
        self._answers = answers
        self._prompts = prompts
        self._backends = backends
        self._versions = versions
        self._providers = providers
        self._presets = presets
        self._drafts = drafts

    # --- the list ---------------------------------------------------------------------------

    @route(
        "GET /api/v1/answers",
        Scope.READ,
        "Search answers, newest first.",
        query=AnswerQuery,
        answer=AnswerList,
    )
    async def _list(self, request: ConsoleRequest) -> AnswerList:
        asked = request.query(AnswerQuery).to_search()
        found = await self._answers.search(asked, _ANSWERS_PER_PAGE)
        return AnswerList(
            answers=[
                answer_row(with_masked_text(one, self._prompts.mask)) for one in found.answers
            ],
            next_before=found.next_before,
        )

    @route("GET /answers", Scope.READ, "The list of answers.", query=AnswerQuery)
    async def _list_page(self, request: ConsoleRequest) -> Page:
        query = request.query(AnswerQuery)
        found = await self._list(request)
        older = {**dict(request.http.query), "before": found.next_before}
        return Page(
            "answers.html",
            {
                "found": found,
                "query": query,
                "older": None if found.next_before is None else f"/answers?{urlencode(older)}",
                "is_filtered": bool(request.http.query),
            },
        )

    # --- one answer -------------------------------------------------------------------------

    async def _find(self, request: ConsoleRequest, name: str = "number") -> StoredAnswer:
        found = await find_answer(self._answers, request.number(name))
        return masked_answer(found, self._prompts.mask)

    @route(
        "GET /api/v1/answers/{number}",
        Scope.READ,
        "One answer, and what it was made of.",
        answer=AnswerDetail,
    )
    async def _detail(self, request: ConsoleRequest) -> AnswerDetail:
        return answer_detail(await self._find(request))

    @route(
        "GET /api/v1/answers/{number}/prompt",
        Scope.READ,
        "The prompt that was sent, secrets removed.",
        query=PromptQuery,
        answer=ShownPrompt,
        errors={409: "The tokens are not known."},
    )
    async def _prompt(self, request: ConsoleRequest) -> ShownPrompt:
        answer = await self._find(request)
        match request.query(PromptQuery).form:
            case "messages":
                return ShownPrompt(
                    messages=[
                        ShownMessage(role=one.role, content=one.content)
                        for one in answer.receipt.prompt.messages
                    ]
                )
            case "tokens":
                return ShownPrompt(
                    tokens=[
                        ShownToken(
                            id=one.id, text=one.text, control=one.control, trusted=one.trusted
                        )
                        for one in await self._tokens(answer)
                    ]
                )
            case "text":
                return ShownPrompt(text=(await self._describe(answer)).text)

    async def _describe(self, answer: StoredAnswer) -> PromptDescription:
        return await self._prompts.describe(answer.receipt)

    async def _tokens(self, answer: StoredAnswer) -> list[PromptToken]:
        """Return the tokens of a prompt; raises `RequestRefused` where nobody here knows them."""
        backend = self._backends.get(answer.receipt.provider)
        if not isinstance(backend, LocalBackend):
            raise RequestRefused(409, _NO_TOKENS)
        try:
            return list(await backend.tokenize(answer.receipt.prompt))
        except BackendUnavailable as error:
            raise RequestRefused(409, str(error)) from None

    @route("GET /answers/{number}", Scope.READ, "One answer.", query=PromptQuery)
    async def _answer_page(self, request: ConsoleRequest) -> Page:
        answer = await self._find(request)
        receipt = answer.receipt
        form = request.query(PromptQuery).form
        row = answer_row(answer)
        return Page(
            "answer.html",
            {
                "answer": row,
                "text": receipt.answer,
                "thoughts": receipt.thoughts,
                "address": address_of(answer.conversation),
                "received_at": receipt.timings.received_at,
                "form": form,
                "cost": None if receipt.charge.cost is None else format_cost(receipt.charge.cost),
                "segments": budget_segments(receipt),
                "steps": waterfall(receipt, await self._delivered_seconds(answer)),
                "named": [span for span in receipt.layout if span.name],
                "dropped": [(item, looked_up(item.why)) for item in receipt.dropped],
                "dropped_tokens": sum(item.tokens or 0 for item in receipt.dropped),
                "parameters": await self._parameters(answer),
                "before": await self._answers.find_before(answer),
                "elsewhere": costs_elsewhere(receipt, self._providers),
                "presets": sorted(self._presets),
                "drafts": await self._draft_names(),
                "instructions": instructions_of(receipt.prompt),
                **await self._prompt_values(answer, form),
            },
        )

    async def _delivered_seconds(self, answer: StoredAnswer) -> float | None:
        """Return after how long the last message of an answer was sent; None: not known."""
        received = answer.receipt.timings.received_at
        sent = None if received is None else await self._answers.find_delivery(answer)
        return None if sent is None or received is None else max(0.0, sent - received)

    async def _draft_names(self) -> Sequence[str]:
        return () if self._drafts is None else [one.name for one in await self._drafts.all()]

    async def _parameters(self, answer: StoredAnswer) -> list[UsedParameter]:
        receipt = answer.receipt
        number = receipt.preset_version
        version = None if number is None else await self._versions.find(receipt.preset, number)
        return used_parameters(receipt.prompt, version)

    async def _prompt_values(self, answer: StoredAnswer, form: str) -> Mapping[str, object]:
        """Return what the prompt is shown from: its sections, its text or its tokens."""
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
                description = await self._describe(answer)
                values["pieces"] = described_pieces(description, answer.receipt)
                values["details"] = description.details
        return values

    # --- comparison -------------------------------------------------------------------------

    @route(
        "GET /answers/{number}/compare",
        Scope.READ,
        "Go to the comparison with a chosen answer.",
        query=ComparedAnswer,
    )
    async def _choose_other(self, request: ConsoleRequest) -> web.Response:
        older, newer = sorted((request.number("number"), request.query(ComparedAnswer).other))
        return redirect(f"/answers/{newer}/compare/{older}")

    @route("GET /answers/{number}/compare/{other}", Scope.READ, "Two answers beside each other.")
    async def _comparison_page(self, request: ConsoleRequest) -> Page:
        newer = await self._find(request)
        older = await self._find(request, "other")
        prompts = [joined_messages(one.receipt.prompt) for one in (older, newer)]
        answers = [one.receipt.answer for one in (older, newer)]
        return Page(
            "comparison.html",
            {
                "older": answer_row(older),
                "newer": answer_row(newer),
                "prompt": differing_pieces(*prompts),
                "answer": differing_pieces(*answers),
            },
        )


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
