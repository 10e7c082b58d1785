"""Pages about answers: search them, show one with its prompt, compare two, and ask again."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlencode

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from bot.backends.exact_prompt import ExactPromptWriter
from bot.backends.spec import FREE, ProviderSettings
from bot.chat.access import ApiScope
from bot.chat.answers import AnswerSearch, StoredAnswer
from bot.chat.prompt import Prompt, PromptToken
from bot.chat.receipt import Receipt
from bot.chat.session import PresetVersion
from bot.chat.usage import MICROS_PER_DOLLAR, format_cost
from bot.console.differences import differing_pieces
from bot.console.prompt_view import (
    budget_segments,
    described_pieces,
    extract_question,
    joined_messages,
    prompt_sections,
    token_pieces,
)
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    Values,
    as_download,
    redirect,
    route,
)
from bot.errors import BackendError, BackendUnavailable, RequestRefused
from bot.ports import Backend, Clock
from bot.prompting.fit import prompt_tokens, tokens_by_section
from bot.storage.operation import SqlMessageNotes
from bot.storage.presets import PresetDrafts, PresetVersions
from bot.storage.reports import AnswerLog
from bot.telemetry.logs import ERROR_PREFIX, parse_failure_notes
from bot.texts.text import Text, translatable
from bot.value_class import value_class

_ANSWERS_PER_PAGE = 50
_EXCERPT_CHARS = 200
_MAX_ERRORS = 200
_MAX_EXPORTED_ANSWERS = 1_000
_MAX_COUNTED_VALUES = 100
_COUNTS_CACHE_SECONDS = 30.0
_COUNTED_PERIOD_SECONDS = 30 * 86_400.0
_MAX_ANSWER_NUMBER = 2**62
_MAX_MARKS = 5
_ANY_MODEL = "*"
_NO_TOKENS_NOTICE = translatable(
    "Only local models show their tokens; this provider counts tokens itself."
)


class AnswerQuery(BaseModel):
    """Filters for a search of answers; an empty query finds all answers."""

    model_config = ConfigDict(allow_inf_nan=False)

    channel: str = Field("", max_length=500, description="The key of a conversation.")
    preset: str = Field("", max_length=500)
    person: str = Field("", max_length=500, description="A person's id, such as telegram:5.")
    model: str = Field("", max_length=500, description="The model or its provider.")
    cost: float | Literal[""] = Field("", description="The lowest cost, in US dollars.")
    seconds: float | Literal[""] = Field("", description="The shortest time, in seconds.")
    cut_off: bool = Field(False, description="Only answers that were cut off.")
    left_out: bool = Field(
        False, description="Only answers whose prompt had to leave something out."
    )
    text: str = Field(
        "", max_length=500, description="Text in the answer or in the message that it answers."
    )
    since: datetime | Literal[""] = Field(
        "", description="The time of the oldest answer, in UTC or in Unix seconds."
    )
    until: datetime | Literal[""] = ""
    sort: Literal["", "seconds", "first_word", "tokens", "cost"] = Field(
        "", description="Which answers come first; by default the newest."
    )
    before: int | None = Field(
        None, ge=0, lt=_MAX_ANSWER_NUMBER, description="Only answers with a number below this one."
    )

    @field_validator("channel", "preset", "person", "model", "text")
    @classmethod
    def _remove_nul(cls, value: str) -> str:
        return value.replace("\0", "").strip()  # PostgreSQL cannot store NUL

    def to_search(self) -> AnswerSearch:
        dollars = min(max(self.cost or 0.0, 0.0), 1e9)
        return AnswerSearch(
            conversation=self.channel,
            min_cost=None if self.cost == "" else round(dollars * MICROS_PER_DOLLAR),
            min_seconds=None if self.seconds == "" else self.seconds,
            since=_to_timestamp(self.since),
            until=_to_timestamp(self.until),
            **self.model_dump(exclude={"channel", "cost", "seconds", "since", "until", "state"}),
        )


def _to_timestamp(at: datetime | Literal[""]) -> float | None:
    if at == "":
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


_PromptForm: TypeAlias = Literal["text", "messages", "tokens"]
_AnswerNumber: TypeAlias = Annotated[int, Field(ge=0, lt=_MAX_ANSWER_NUMBER)]


@value_class
class AnswerRow:
    """One answer in the list."""

    number: int
    at: float
    """The time of the answer, in Unix seconds."""
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
    """Why generation ended; null if it was interrupted."""
    left_out: int
    """How many wanted items were left out of the prompt, such as those that did not fit."""
    cost: float | None
    """The cost in US dollars; null if unknown."""
    question: str
    """The beginning of the message that was answered."""
    excerpt: str
    check: str
    """Why the answer was withheld, or was shown unchecked, in English; usually empty."""


def answer_row(answer: StoredAnswer, mask: Callable[[str], str] = str) -> AnswerRow:
    receipt, cost = answer.receipt, answer.receipt.charge.cost
    return AnswerRow(
        number=answer.number,
        at=answer.at,
        channel=answer.conversation,
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
        left_out=receipt.omitted_count,
        cost=None if cost is None else cost / MICROS_PER_DOLLAR,
        question=mask(extract_question(receipt))[:_EXCERPT_CHARS],
        excerpt=mask(receipt.answer)[:_EXCERPT_CHARS],
        check=receipt.check,
    )


class ListQuery(AnswerQuery):
    """Filters for the list page, which shows errors instead of answers if `state` is "errors"."""

    state: Literal["", "errors"] = ""


Replay: TypeAlias = Callable[
    [StoredAnswer, str, str, Mapping[str, object]], Awaitable[StoredAnswer]
]
_Preset = Annotated[
    str, Field(max_length=500, description="The preset whose model and parameters are used.")
]
_Draft = Annotated[
    str,
    Field(
        max_length=500,
        description="The preset whose draft (or published version) composes a new prompt, and"
        " whose model answers. Empty: send the stored prompt.",
    ),
]


def _read_parameters(value: object) -> object:
    try:
        return json.loads(value or "{}") if isinstance(value, str) else value
    except RecursionError:  # nested too deeply
        raise ValueError("not a JSON object") from None


_Parameters = Annotated[
    dict[str, bool | int | float | str],
    BeforeValidator(_read_parameters),
    Field(description="Sampling parameters to override individually."),
]
_ReplayedWith = Annotated[str, Field(max_length=510, pattern=r"^(?:(?:model|draft):.*)?$")]
"""The value of a form field: "model:" or "draft:", followed by a preset's name."""


@dataclass(slots=True)
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
    clock: Clock
    _cached_counts: tuple[float, Mapping[str, Mapping[str, int]]] = (-math.inf, {})

    @route("GET /api/v1/answers", ApiScope.READ)
    async def list_answers(
        self, query: AnswerQuery
    ) -> Mapping[str, Sequence[AnswerRow] | int | None]:
        """Search answers, newest first; `next_before` continues the search."""
        found = await self.answers.search(query.to_search(), _ANSWERS_PER_PAGE)
        rows = [answer_row(one, self.prompts.mask) for one in found.answers]
        return {"answers": rows, "next_before": found.next_before}

    @route("GET /answers", ApiScope.READ, template="answers.html")
    async def list_page(self, request: ConsoleRequest, query: ListQuery) -> Page | Values:
        if query.state:
            since, until = _to_timestamp(query.since), _to_timestamp(query.until)
            notes = await self.notes.newest_with_key_prefix(ERROR_PREFIX, _MAX_ERRORS, since, until)
            return Page("errors.html", {"errors": parse_failure_notes(notes)})
        found = await self.list_answers(query)
        given = {name: one for name, one in request.http.query.items() if one}
        older = urlencode({**given, "before": found["next_before"]})
        return {
            "found": found,
            "query": query,
            "search": urlencode(given),
            "unsorted": urlencode([one for one in given.items() if one[0] != "sort"]),
            "older": None if found["next_before"] is None else f"/answers?{older}",
            "is_filtered": bool(given),
            "counts": await self._counts(),
        }

    async def _counts(self) -> Mapping[str, Mapping[str, int]]:
        """Count the last month's answers by filter and value; counts are reused for 30 seconds."""
        made_at, counts = self._cached_counts
        if self.clock.monotonic() - made_at > _COUNTS_CACHE_SECONDS:
            since = self.clock.now() - _COUNTED_PERIOD_SECONDS
            counts = await self.answers.count_filter_values(since, _MAX_COUNTED_VALUES)
            self._cached_counts = (self.clock.monotonic(), counts)
        return counts

    @route("GET /answers.jsonl", ApiScope.READ)
    async def export(self, query: AnswerQuery) -> web.Response:
        """Download the matching answers with their prompts, one JSON object per line."""
        found = await self.answers.search(query.to_search(), _MAX_EXPORTED_ANSWERS)
        lines = [self._export_line(one) for one in found.answers]
        return as_download("".join(lines), "application/jsonl", 'filename="answers.jsonl"')

    def _export_line(self, answer: StoredAnswer) -> str:
        masked = masked_answer(answer, self.prompts.mask)
        receipt = masked.receipt
        line = {
            **asdict(answer_row(masked)),
            "messages": _shown_messages(receipt.prompt),
            "answer": receipt.answer,
            "parameters": receipt.prompt.parameters,
        }
        return f"{json.dumps(line, ensure_ascii=False)}\n"

    async def _find_with_secrets(self, number: int) -> StoredAnswer:
        found = await self.answers.find(number)
        if found is None:
            text = translatable("There is no such answer, or its text has been deleted.")
            raise RequestRefused(404, text)
        return found

    async def _find(self, number: int) -> StoredAnswer:
        return masked_answer(await self._find_with_secrets(number), self.prompts.mask)

    @route("GET /api/v1/answers/{number}", ApiScope.READ)
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

    @route("GET /api/v1/answers/{number}/prompt", ApiScope.READ)
    async def show_prompt(
        self, number: int, form: _PromptForm = "messages"
    ) -> Mapping[str, str | Sequence[Mapping[str, str] | PromptToken]]:
        """Get the prompt of an answer in one form, with secrets masked."""
        answer = await self._find(number)
        shown: dict[str, str | Sequence[Mapping[str, str] | PromptToken]]
        shown = {"text": "", "messages": [], "tokens": []}
        match form:
            case "messages":
                shown["messages"] = _shown_messages(answer.receipt.prompt)
            case "tokens":
                shown["tokens"] = await self._tokenize_prompt(answer)
            case "text":
                shown["text"] = (await self.prompts.describe(answer.receipt)).text
        return shown

    async def _tokenize_prompt(self, answer: StoredAnswer) -> Sequence[PromptToken]:
        backend = self.backends.get(answer.receipt.provider)
        if backend is None or not backend.can_tokenize:
            raise RequestRefused(409, _NO_TOKENS_NOTICE)
        try:
            return await backend.tokenize(answer.receipt.prompt)
        except BackendUnavailable as error:
            raise RequestRefused(409, str(error)) from None

    @route("GET /answers/{number}", ApiScope.READ, template="answer.html")
    async def answer_page(self, number: int, form: _PromptForm = "messages") -> Values:
        answer = await self._find(number)
        receipt = answer.receipt
        version = None
        if receipt.preset_version is not None:
            version = await self.versions.find(receipt.preset, receipt.preset_version)
        steps = waterfall_steps(receipt, await self._delivered_seconds(answer))
        return {
            "answer": answer_row(answer),
            "receipt": receipt,
            "question": extract_question(receipt),
            "feedback": await self.answers.find_feedback(number),
            "form": form,
            "segments": budget_segments(receipt),
            "steps": steps,
            "axis": axis_marks(max(one.end for one in steps)),
            "parameters": used_parameters(receipt.prompt, version),
            "before": await self.answers.find_previous(answer),
            "beside": await self.answers.find_previous_and_next(answer),
            "elsewhere": costs_with_other_models(receipt, self.providers),
            "presets": sorted(self.presets),
            "drafts": [one.name for one in await self.drafts.all()],
            **await self._prompt_values(answer, form),
        }

    async def _delivered_seconds(self, answer: StoredAnswer) -> float | None:
        """Return the seconds from a message's arrival to its answer's delivery; None if unknown."""
        received = answer.receipt.timings.received_at
        sent = None if received is None else await self.answers.find_sent_time(answer)
        return None if sent is None or received is None else max(0.0, sent - received)

    async def _prompt_values(self, answer: StoredAnswer, form: str) -> Mapping[str, object]:
        values: dict[str, object] = {"sections": [], "pieces": [], "problem": "", "details": {}}
        match form:
            case "messages":
                values["sections"] = prompt_sections(answer.receipt)
            case "tokens":
                try:
                    tokens = await self._tokenize_prompt(answer)
                    values["pieces"] = token_pieces(tokens, answer.receipt)
                except RequestRefused as error:
                    values["problem"] = error.text
            case _:
                description = await self.prompts.describe(answer.receipt)
                values["pieces"] = described_pieces(description, answer.receipt)
                values["details"] = description.details
        return values

    @route("GET /answers/{number}/compare", ApiScope.READ)
    async def choose_other(self, number: int, other: _AnswerNumber) -> web.Response:
        return redirect(f"/answers/{max(number, other)}/compare/{min(number, other)}")

    @route("GET /answers/{number}/compare/{other}", ApiScope.READ, template="comparison.html")
    async def comparison_page(self, number: int, other: int) -> Values:
        newer, older = await self._find(number), await self._find(other)
        prompts = [joined_messages(one.receipt.prompt) for one in (older, newer)]
        parts = {
            "answer": differing_pieces(older.receipt.answer, newer.receipt.answer),
            "prompt": await asyncio.to_thread(differing_pieces, *prompts),
        }
        return {"older": answer_row(older), "newer": answer_row(newer), "parts": parts}

    @route("POST /api/v1/answers/{number}/replay", ApiScope.OPERATE)
    async def ask_again(
        self,
        number: int,
        preset: _Preset = "",
        draft: _Draft = "",
        parameters: _Parameters = {},  # noqa: B006 # pydantic copies it
    ) -> Mapping[str, object]:
        """Send a stored prompt to a model again; empty fields keep the original values.

        The new answer is stored under its own number, but not added to any history.
        """
        stored = await self._find_with_secrets(number)
        try:
            made = await self.replay(stored, preset, draft, parameters)
        except BackendError as error:
            raise RequestRefused(502, error.notice) from error
        return await self.show(made.number)

    @route(
        "POST /answers/{number}/replay",
        ApiScope.OPERATE,
        then="/answers/{replayed}/compare/{number}",
    )
    async def ask_again_by_form(
        self,
        number: int,
        use: _ReplayedWith = "",
        parameters: _Parameters = {},  # noqa: B006
    ) -> Mapping[str, object]:
        kind, _, name = use.partition(":")
        model_of, draft = (name if kind == one else "" for one in ("model", "draft"))
        made = await self.ask_again(number, model_of, draft, parameters)
        return {"replayed": made["number"]}


def _shown_messages(prompt: Prompt) -> Sequence[Mapping[str, str]]:
    return [{"role": one.role, "content": one.content} for one in prompt.messages]


def masked_answer(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    receipt = answer.receipt
    messages = []
    for one in receipt.prompt.messages:
        parts = tuple(mask(each) if isinstance(each, str) else each for each in one.parts)
        messages.append(replace(one, content=mask(one.content), parts=parts))
    masked = replace(
        receipt,
        answer=mask(receipt.answer),
        thoughts=mask(receipt.thoughts),
        prompt=replace(receipt.prompt, messages=tuple(messages)),
        layout=tuple(replace(span, name=mask(span.name)) for span in receipt.layout),
        dropped=tuple(replace(item, name=mask(item.name)) for item in receipt.dropped),
    )
    return replace(answer, receipt=masked)


@value_class
class WaterfallStep:
    step: str
    """One of "received", "waited", "composed", "prefill", "decode", "edits", "delivered"."""
    begin: float
    """In seconds after the message's arrival."""
    seconds: float
    marks: Sequence[float] = ()
    """The times of single events (arrival, each edit), in seconds after the message's arrival."""

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def waterfall_steps(receipt: Receipt, delivered: float | None = None) -> Sequence[WaterfallStep]:
    """Return the steps of a timing chart; `delivered` is in seconds after the message's arrival."""
    timings = receipt.timings
    first = timings.seconds if timings.first_word_seconds is None else timings.first_word_seconds
    lengths = {
        "waited": max(0.0, timings.queued_seconds - timings.composed_seconds),
        "composed": timings.composed_seconds,
        "prefill": first,
        "decode": max(0.0, timings.seconds - first),
    }
    steps = [WaterfallStep("received", 0.0, 0.0, [0.0])]
    for step, seconds in lengths.items():
        steps.append(WaterfallStep(step, steps[-1].end, seconds))
    written, last_edit = steps[-1].end, max(timings.edits, default=0.0)
    if timings.edits:
        begin = min(timings.edits)
        steps.append(WaterfallStep("edits", begin, last_edit - begin, timings.edits))
    if delivered is not None:
        sending_seconds = max(0.0, max(delivered, last_edit) - written)
        steps.append(WaterfallStep("delivered", written, sending_seconds))
    return steps


def axis_marks(seconds: float) -> Sequence[float]:
    """Return the positions of up to six marks on a time axis; `seconds` is the axis's length."""
    if not seconds:
        return []
    power = 10.0 ** math.floor(math.log10(seconds))
    step = next(power * one for one in (0.2, 0.5, 1, 2) if seconds / (power * one) <= _MAX_MARKS)
    return [step * at for at in range(int(seconds / step + 1e-9) + 1)]


def costs_with_other_models(
    receipt: Receipt, providers: Mapping[str, ProviderSettings]
) -> Sequence[tuple[str, str]]:
    """Return what an answer would have cost with each other priced model, cheapest first."""
    usage = replace(receipt.usage, prompt_tokens=prompt_tokens(receipt))
    costs = {
        (provider, (settings.model or model) if model == _ANY_MODEL else model): price.cost(usage)
        for provider, settings in providers.items()
        for model, price in settings.prices.items()
        if price != FREE
    }
    costs.pop((receipt.provider, receipt.charge.model or receipt.prompt.model), None)
    ordered = sorted(costs.items(), key=lambda item: (item[1], item[0]))
    return [("/".join(name), format_cost(cost)) for name, cost in ordered]


def used_parameters(
    prompt: Prompt, version: PresetVersion | None
) -> list[tuple[str, str, Text | None]]:
    """Return each prompt parameter's name, value, and origin; without `version`, origin is None."""
    content = json.loads(version.content) if version and version.content else {}

    def describe_origin(value: object, preset_value: object) -> Text | None:
        if version is None:
            return None
        if preset_value is None:
            return translatable("default")
        if preset_value == value:
            return translatable("preset, version {number}", number=version.version)
        return translatable("changed for this answer; the preset says {value}", value=preset_value)

    given = content.get("parameters") or {}
    used = [
        (name, str(value), describe_origin(value, given.get(name)))
        for name, value in prompt.parameters.items()
    ]
    longest = prompt.max_output_tokens
    if longest is not None:
        origin = describe_origin(longest, content.get("max_output_tokens"))
        used.append(("max_output_tokens", str(longest), origin))
    own = content.get("stop_sequences") or ()
    others = translatable("names of the other speakers")
    for text in prompt.stop:
        is_own = version is None or text in own
        used.append(("stop", repr(text), describe_origin(text, text) if is_own else others))
    return used
