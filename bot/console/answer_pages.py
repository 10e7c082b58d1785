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

from bot.backends.exact_prompt import PastPromptWriter
from bot.backends.spec import FREE, ProviderSettings
from bot.chat.access import ApiScope
from bot.chat.answers import AnswerSearch, StoredAnswer
from bot.chat.prompt import Prompt, PromptToken
from bot.chat.receipt import Receipt
from bot.chat.session import PresetVersion
from bot.chat.usage import MICROS_PER_DOLLAR, format_cost
from bot.console.differences import compare_texts
from bot.console.prompt_view import (
    extract_question,
    join_messages,
    make_budget_segments,
    split_description,
    split_into_sections,
    split_tokens,
)
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    Values,
    make_file_response,
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
_MAX_FILTER_VALUES = 100
_COUNTS_CACHE_SECONDS = 30.0
_COUNTED_PERIOD_SECONDS = 30 * 86_400.0
_MAX_ANSWER_NUMBER = 2**62
_MAX_AXIS_STEPS = 5
_ANY_MODEL = "*"
_NO_TOKENS_NOTICE = translatable(
    "Only the tokens of local models can be shown; this provider does not report its tokens."
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
    left_out: bool = Field(False, description="Only answers whose prompt left something out.")
    text: str = Field(
        "", max_length=500, description="Text in the answer or in the message that it answers."
    )
    since: datetime | Literal[""] = Field(
        "", description="The time of the oldest answer, in UTC or in Unix seconds."
    )
    until: datetime | Literal[""] = ""
    sort: Literal["", "seconds", "first_word", "tokens", "cost"] = Field(
        "", description="The sort order; by default, the newest first."
    )
    before: int | None = Field(
        None, ge=0, lt=_MAX_ANSWER_NUMBER, description="Only answers with a number below this one."
    )

    @field_validator("channel", "preset", "person", "model", "text")
    @classmethod
    def _remove_nul(cls, value: str) -> str:
        return value.replace("\0", "").strip()  # PostgreSQL cannot store NUL

    def to_answer_search(self) -> AnswerSearch:
        min_dollars = min(max(self.cost or 0.0, 0.0), 1e9)
        return AnswerSearch(
            conversation=self.channel,
            min_cost=None if self.cost == "" else round(min_dollars * MICROS_PER_DOLLAR),
            min_seconds=None if self.seconds == "" else self.seconds,
            since=_to_timestamp(self.since),
            until=_to_timestamp(self.until),
            **self.model_dump(exclude={"channel", "cost", "seconds", "since", "until", "state"}),
        )


def _to_timestamp(moment: datetime | Literal[""]) -> float | None:
    if moment == "":
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_PromptFormat: TypeAlias = Literal["text", "messages", "tokens"]
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
    """The number of items left out of the prompt, for example because they did not fit."""
    cost: float | None
    """The cost in US dollars; null if unknown."""
    question: str
    """The beginning of the message that was answered."""
    excerpt: str
    check: str
    """Why the answer was withheld or shown unchecked, in English; empty for most answers."""


def to_answer_row(answer: StoredAnswer, mask: Callable[[str], str] = str) -> AnswerRow:
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


class AnswerListQuery(AnswerQuery):
    """Filters for the list page, which shows errors instead of answers if `state` is "errors"."""

    state: Literal["", "errors"] = ""


Replay: TypeAlias = Callable[
    [StoredAnswer, str, str, Mapping[str, object]], Awaitable[StoredAnswer]
]
_PresetName = Annotated[
    str, Field(max_length=500, description="The preset whose model and parameters are used.")
]
_DraftName = Annotated[
    str,
    Field(
        max_length=500,
        description="The preset whose draft (or published version) composes a new prompt, and"
        " whose model answers. Empty: send the stored prompt.",
    ),
]


def _parse_parameters(value: object) -> object:
    try:
        return json.loads(value or "{}") if isinstance(value, str) else value
    except RecursionError:  # nested too deeply
        raise ValueError("not a JSON object") from None


_SamplingParameters = Annotated[
    dict[str, bool | int | float | str],
    BeforeValidator(_parse_parameters),
    Field(description="Sampling parameters to override individually."),
]
_ReplayChoice = Annotated[str, Field(max_length=510, pattern=r"^(?:(?:model|draft):.*)?$")]
"""The value of a form field: "model:" or "draft:", followed by a preset's name."""


@dataclass(slots=True)
class AnswerPages(RouteGroup):
    navigation = (NavigationItem("/answers", translatable("Answers"), "answers"),)

    answers: AnswerLog
    prompt_writer: PastPromptWriter
    backends: Mapping[str, Backend]
    versions: PresetVersions
    providers: Mapping[str, ProviderSettings]
    preset_names: Collection[str]
    drafts: PresetDrafts
    replay: Replay
    notes: SqlMessageNotes
    clock: Clock
    _cached_counts: tuple[float, Mapping[str, Mapping[str, int]]] = (-math.inf, {})

    @route("GET /api/v1/answers", ApiScope.READ)
    async def list_answers(
        self, query: AnswerQuery
    ) -> Mapping[str, Sequence[AnswerRow] | int | None]:
        """Search answers, newest first; pass `next_before` as `before` for the next page."""
        result = await self.answers.search(query.to_answer_search(), _ANSWERS_PER_PAGE)
        rows = [to_answer_row(one, self.prompt_writer.mask) for one in result.answers]
        return {"answers": rows, "next_before": result.next_page_cursor}

    @route("GET /answers", ApiScope.READ, template="answers.html")
    async def list_page(self, request: ConsoleRequest, query: AnswerListQuery) -> Page | Values:
        if query.state:
            since, until = _to_timestamp(query.since), _to_timestamp(query.until)
            notes = await self.notes.list_notes_of_kind(ERROR_PREFIX, _MAX_ERRORS, since, until)
            return Page("errors.html", {"errors": parse_failure_notes(notes)})
        result = await self.list_answers(query)
        query_filters = {name: one for name, one in request.http.query.items() if one}
        older_query = urlencode({**query_filters, "before": result["next_before"]})
        return {
            "found": result,
            "query": query,
            "search": urlencode(query_filters),
            "unsorted": urlencode([one for one in query_filters.items() if one[0] != "sort"]),
            "older": None if result["next_before"] is None else f"/answers?{older_query}",
            "is_filtered": bool(query_filters),
            "counts": await self._count_filter_values(),
        }

    async def _count_filter_values(self) -> Mapping[str, Mapping[str, int]]:
        """Count the last month's answers for each filter value; cache the counts for 30 seconds."""
        counted_at, counts = self._cached_counts
        if self.clock.monotonic() - counted_at > _COUNTS_CACHE_SECONDS:
            since = self.clock.now() - _COUNTED_PERIOD_SECONDS
            counts = await self.answers.count_filter_values(since, _MAX_FILTER_VALUES)
            self._cached_counts = (self.clock.monotonic(), counts)
        return counts

    @route("GET /answers.jsonl", ApiScope.READ)
    async def export(self, query: AnswerQuery) -> web.Response:
        """Download the matching answers with their prompts, one JSON object per line."""
        result = await self.answers.search(query.to_answer_search(), _MAX_EXPORTED_ANSWERS)
        lines = [self._make_export_line(one) for one in result.answers]
        return make_file_response("".join(lines), "application/jsonl", 'filename="answers.jsonl"')

    def _make_export_line(self, answer: StoredAnswer) -> str:
        masked_answer = mask_answer(answer, self.prompt_writer.mask)
        receipt = masked_answer.receipt
        line = {
            **asdict(to_answer_row(masked_answer)),
            "messages": _to_plain_messages(receipt.prompt),
            "answer": receipt.answer,
            "parameters": receipt.prompt.parameters,
        }
        return f"{json.dumps(line, ensure_ascii=False)}\n"

    async def _find_unmasked_answer(self, number: int) -> StoredAnswer:
        answer = await self.answers.find(number)
        if answer is None:
            text = translatable("There is no such answer, or its text has been deleted.")
            raise RequestRefused(404, text)
        return answer

    async def _find_answer(self, number: int) -> StoredAnswer:
        return mask_answer(await self._find_unmasked_answer(number), self.prompt_writer.mask)

    @route("GET /api/v1/answers/{number}", ApiScope.READ)
    async def show(self, number: int) -> Mapping[str, object]:
        """Get an answer with its text and the details of its prompt."""
        answer = await self._find_answer(number)
        receipt = answer.receipt
        return {
            **asdict(to_answer_row(answer)),
            "answer": receipt.answer,
            "sections": tokens_by_section(receipt),
            "dropped": receipt.dropped,
            "parameters": receipt.prompt.parameters,
            "stop": receipt.prompt.stop,
            "feedback": await self.answers.find_reactions_by_person(number),
        }

    @route("GET /api/v1/answers/{number}/prompt", ApiScope.READ)
    async def show_prompt(
        self, number: int, form: _PromptFormat = "messages"
    ) -> Mapping[str, str | Sequence[Mapping[str, str] | PromptToken]]:
        """Get the prompt of an answer in one form, with secrets masked."""
        answer = await self._find_answer(number)
        result: dict[str, str | Sequence[Mapping[str, str] | PromptToken]]
        result = {"text": "", "messages": [], "tokens": []}
        match form:
            case "messages":
                result["messages"] = _to_plain_messages(answer.receipt.prompt)
            case "tokens":
                result["tokens"] = await self._tokenize_prompt(answer)
            case "text":
                result["text"] = (await self.prompt_writer.describe(answer.receipt)).text
        return result

    async def _tokenize_prompt(self, answer: StoredAnswer) -> Sequence[PromptToken]:
        backend = self.backends.get(answer.receipt.provider)
        if backend is None or not backend.can_tokenize:
            raise RequestRefused(409, _NO_TOKENS_NOTICE)
        try:
            return await backend.tokenize(answer.receipt.prompt)
        except BackendUnavailable as error:
            raise RequestRefused(409, str(error)) from None

    @route("GET /answers/{number}", ApiScope.READ, template="answer.html")
    async def answer_page(self, number: int, form: _PromptFormat = "messages") -> Values:
        answer = await self._find_answer(number)
        receipt = answer.receipt
        version = None
        if receipt.preset_version is not None:
            version = await self.versions.find(receipt.preset, receipt.preset_version)
        steps = build_waterfall(receipt, await self._find_total_seconds(answer))
        return {
            "answer": to_answer_row(answer),
            "receipt": receipt,
            "question": extract_question(receipt),
            "feedback": await self.answers.find_reactions_by_person(number),
            "form": form,
            "segments": make_budget_segments(receipt),
            "steps": steps,
            "axis": place_axis_marks(max(one.end_seconds for one in steps)),
            "parameters": describe_parameters(receipt.prompt, version),
            "before": await self.answers.find_previous_answer_by_preset(answer),
            "beside": await self.answers.find_adjacent_answers(answer),
            "other_costs": estimate_other_model_costs(receipt, self.providers),
            "presets": sorted(self.preset_names),
            "drafts": [one.name for one in await self.drafts.all()],
            **await self._load_prompt_values(answer, form),
        }

    async def _find_total_seconds(self, answer: StoredAnswer) -> float | None:
        """Return the seconds from a message's arrival to its answer's delivery; None if unknown."""
        received_at = answer.receipt.timings.received_at
        sent_at = None if received_at is None else await self.answers.find_sent_time(answer)
        return None if sent_at is None or received_at is None else max(0.0, sent_at - received_at)

    async def _load_prompt_values(self, answer: StoredAnswer, form: str) -> Mapping[str, object]:
        values: dict[str, object] = {"sections": [], "pieces": [], "problem": "", "details": {}}
        match form:
            case "messages":
                values["sections"] = split_into_sections(answer.receipt)
            case "tokens":
                try:
                    tokens = await self._tokenize_prompt(answer)
                    values["pieces"] = split_tokens(tokens, answer.receipt)
                except RequestRefused as error:
                    values["problem"] = error.text
            case _:
                description = await self.prompt_writer.describe(answer.receipt)
                values["pieces"] = split_description(description, answer.receipt)
                values["details"] = description.details
        return values

    @route("GET /answers/{number}/compare", ApiScope.READ)
    async def redirect_to_comparison(self, number: int, other: _AnswerNumber) -> web.Response:
        return redirect(f"/answers/{max(number, other)}/compare/{min(number, other)}")

    @route("GET /answers/{number}/compare/{other}", ApiScope.READ, template="comparison.html")
    async def comparison_page(self, number: int, other: int) -> Values:
        newer, older = await self._find_answer(number), await self._find_answer(other)
        prompts = [join_messages(one.receipt.prompt) for one in (older, newer)]
        differences = {
            "answer": compare_texts(older.receipt.answer, newer.receipt.answer),
            "prompt": await asyncio.to_thread(compare_texts, *prompts),
        }
        return {"older": to_answer_row(older), "newer": to_answer_row(newer), "parts": differences}

    @route("POST /api/v1/answers/{number}/replay", ApiScope.OPERATE)
    async def ask_again(
        self,
        number: int,
        preset: _PresetName = "",
        draft: _DraftName = "",
        parameters: _SamplingParameters = {},  # noqa: B006 # pydantic copies it
    ) -> Mapping[str, object]:
        """Send a stored prompt to a model again; empty fields keep the original values.

        The new answer is stored under its own number, but not added to any history.
        """
        original_answer = await self._find_unmasked_answer(number)
        try:
            new_answer = await self.replay(original_answer, preset, draft, parameters)
        except BackendError as error:
            raise RequestRefused(502, error.notice) from error
        return await self.show(new_answer.number)

    @route(
        "POST /answers/{number}/replay",
        ApiScope.OPERATE,
        redirect="/answers/{replayed}/compare/{number}",
    )
    async def ask_again_by_form(
        self,
        number: int,
        use: _ReplayChoice = "",
        parameters: _SamplingParameters = {},  # noqa: B006
    ) -> Mapping[str, object]:
        kind, _, name = use.partition(":")
        preset_name, draft = (name if kind == one else "" for one in ("model", "draft"))
        result = await self.ask_again(number, preset_name, draft, parameters)
        return {"replayed": result["number"]}


def _to_plain_messages(prompt: Prompt) -> Sequence[Mapping[str, str]]:
    return [{"role": one.role, "content": one.content} for one in prompt.messages]


def mask_answer(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    receipt = answer.receipt
    messages = []
    for one in receipt.prompt.messages:
        parts = tuple(mask(each) if isinstance(each, str) else each for each in one.parts)
        messages.append(replace(one, content=mask(one.content), parts=parts))
    masked_receipt = replace(
        receipt,
        answer=mask(receipt.answer),
        thoughts=mask(receipt.thoughts),
        prompt=replace(receipt.prompt, messages=tuple(messages)),
        layout=tuple(replace(span, name=mask(span.name)) for span in receipt.layout),
        dropped=tuple(replace(item, name=mask(item.name)) for item in receipt.dropped),
    )
    return replace(answer, receipt=masked_receipt)


@value_class
class WaterfallStep:
    name: str
    """One of "received", "waited", "composed", "prefill", "decode", "edits", "delivered"."""
    begin_seconds: float
    """In seconds after the message's arrival."""
    seconds: float
    event_seconds: Sequence[float] = ()
    """The times of single events (arrival, each edit), in seconds after the message's arrival."""

    @property
    def end_seconds(self) -> float:
        return self.begin_seconds + self.seconds


def build_waterfall(receipt: Receipt, delivered_at: float | None = None) -> Sequence[WaterfallStep]:
    """Return the steps of a timing chart; `delivered_at` counts from the message's arrival."""
    timings = receipt.timings
    prefill = timings.seconds if timings.first_word_seconds is None else timings.first_word_seconds
    seconds_by_step = {
        "waited": max(0.0, timings.queued_seconds - timings.composed_seconds),
        "composed": timings.composed_seconds,
        "prefill": prefill,
        "decode": max(0.0, timings.seconds - prefill),
    }
    steps = [WaterfallStep("received", 0.0, 0.0, [0.0])]
    for step, seconds in seconds_by_step.items():
        steps.append(WaterfallStep(step, steps[-1].end_seconds, seconds))
    writing_end, last_edit_at = steps[-1].end_seconds, max(timings.edits, default=0.0)
    if timings.edits:
        begin = min(timings.edits)
        steps.append(WaterfallStep("edits", begin, last_edit_at - begin, timings.edits))
    if delivered_at is not None:
        sending_seconds = max(0.0, max(delivered_at, last_edit_at) - writing_end)
        steps.append(WaterfallStep("delivered", writing_end, sending_seconds))
    return steps


def place_axis_marks(seconds: float) -> Sequence[float]:
    """Return the positions of up to six marks on a time axis; `seconds` is the axis's length."""
    if not seconds:
        return []
    power_of_ten = 10.0 ** math.floor(math.log10(seconds))
    step_sizes = (power_of_ten * one for one in (0.2, 0.5, 1, 2))
    step = next(one for one in step_sizes if seconds / one <= _MAX_AXIS_STEPS)
    return [step * at for at in range(int(seconds / step + 1e-9) + 1)]


def estimate_other_model_costs(
    receipt: Receipt, providers: Mapping[str, ProviderSettings]
) -> Sequence[tuple[str, str]]:
    """Return what an answer would have cost with each other priced model, cheapest first."""
    usage = replace(receipt.usage, prompt_tokens=prompt_tokens(receipt))
    costs_by_model = {
        (provider, (settings.model or model) if model == _ANY_MODEL else model): price.cost(usage)
        for provider, settings in providers.items()
        for model, price in settings.prices.items()
        if price != FREE
    }
    costs_by_model.pop((receipt.provider, receipt.charge.model or receipt.prompt.model), None)
    sorted_costs = sorted(costs_by_model.items(), key=lambda item: (item[1], item[0]))
    return [("/".join(name), format_cost(cost)) for name, cost in sorted_costs]


def describe_parameters(
    prompt: Prompt, version: PresetVersion | None
) -> list[tuple[str, str, Text | None]]:
    """Return each prompt parameter's name, value, and origin; without `version`, origin is None."""
    preset_content = json.loads(version.content) if version and version.content else {}

    def describe_origin(value: object, preset_value: object) -> Text | None:
        if version is None:
            return None
        if preset_value is None:
            return translatable("default")
        if preset_value == value:
            return translatable("from version {number} of the preset", number=version.version)
        return translatable("changed for this answer; the preset has {value}", value=preset_value)

    preset_parameters = preset_content.get("parameters") or {}
    rows = [
        (name, str(value), describe_origin(value, preset_parameters.get(name)))
        for name, value in prompt.parameters.items()
    ]
    max_output_tokens = prompt.max_output_tokens
    if max_output_tokens is not None:
        origin = describe_origin(max_output_tokens, preset_content.get("max_output_tokens"))
        rows.append(("max_output_tokens", str(max_output_tokens), origin))
    preset_stops = preset_content.get("stop_sequences") or ()
    name_origin = translatable("names of the other speakers")
    for text in prompt.stop:
        is_listed = version is None or text in preset_stops
        rows.append(("stop", repr(text), describe_origin(text, text) if is_listed else name_origin))
    return rows
