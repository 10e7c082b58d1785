"""Generate an answer: stream it from a backend, run tools, and filter the visible text."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import reduce

import structlog

from bot.chat.prompt import (
    UNKNOWN_TOOL_NAME,
    Delta,
    Finish,
    FinishReason,
    GenerationEvent,
    Prompt,
    QueuePosition,
    RateLimitWait,
    ReasoningDelta,
    Retraction,
    ToolRecord,
    Usage,
    Waiting,
)
from bot.chat.receipt import Receipt, Timings
from bot.chat.usage import AnswerCharge
from bot.errors import (
    BackendError,
    BackendInterrupted,
    BackendUnavailable,
    ContextExceeded,
    ToolResultsTooLong,
)
from bot.ports import Backend, Clock, TextTokenCounter
from bot.prompting.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import EchoFilter
from bot.replying.answer_check import AnswerCheck
from bot.replying.filters import OutputFilter, RepeatedStartFilter, RepetitionDetector, ends_in_loop
from bot.runtime.tasks import StopFlag
from bot.telemetry.metrics import SECONDS_TO_FIRST_TOKEN, record_span, record_usage
from bot.telemetry.secret_masker import SecretTokenFilter, mask_pasted_tokens
from bot.texts.text import Text, join_texts, translatable
from bot.tools import REACT_TOOL, Toolbox
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_ENDING_NOTES = {
    None: translatable("⚠ (interrupted)"),
    FinishReason.CANCELLED: translatable("⚠ (stopped)"),
    FinishReason.REPETITION: translatable(
        "⚠ (cut off: the model began to repeat itself; try again, or ask differently)"
    ),
    FinishReason.LENGTH: translatable(
        "⚠ (cut off at the length limit; write “go on” for the rest)"
    ),
    FinishReason.FILTERED: translatable(
        "⚠ (cut off by the provider's content filter; try other words)"
    ),
}


@value_class
class GeneratedAnswer:
    """A generated answer as stored in the history, without notes on tools or incompleteness."""

    text: str
    reason: FinishReason | None
    """Why generation finished; None: the stream was interrupted."""
    usage: Usage
    first_word_seconds: float | None
    seconds: float
    thoughts: str = ""
    tool_calls: tuple[ToolRecord, ...] = ()
    interrupted_text: str = ""
    """The text of a stream that was cut off and then continued; its usage was not reported."""


@value_class
class VisibleTokenLimit:
    """A token limit for a thinking model's visible text; its thoughts do not count."""

    tokens: int
    count_tokens: TextTokenCounter


@contextmanager
def log_steps_on_error(compose_seconds: float, prompt_tokens: int, clock: Clock) -> Iterator[None]:
    """Log the duration of each step so far if the block fails with `BackendError`."""
    requested_at = clock.monotonic()
    try:
        yield
    except BackendError:
        _log.info("prompt_composed", tokens=prompt_tokens, seconds=round(compose_seconds, 3))
        _log.info("prefill", seconds=round(clock.monotonic() - requested_at, 3))
        raise


async def allow_always() -> bool:
    return True


async def generate_answer(
    backend: Backend,
    prompt: Prompt,
    show: Callable[[str], None],
    show_wait: Callable[[Waiting], None],
    clock: Clock,
    stop_flag: StopFlag | None = None,
    may_continue: Callable[[], Awaitable[bool]] = allow_always,
    tools: Toolbox | None = None,
    limit: VisibleTokenLimit | None = None,
    provider: str = "",
    replace_shown_text: Callable[[str], None] = lambda _: None,
    check: AnswerCheck | None = None,
) -> GeneratedAnswer:
    """Generate an answer, and call `show` with its text as it arrives.

    A cut-off stream is continued once if the model supports it. An answer is kept if it was
    interrupted after its first text, or stopped at any time. `may_continue` decides whether another
    request may be sent, such as for a round of `tools`. If some text turns out to be reasoning,
    `replace_shown_text` gets the text that remains. Only text that passed `check` is shown; a
    refused answer ends early. Raises `BackendError` if generation fails before the first text.
    """
    was_interrupted = False
    stop_flag = stop_flag or StopFlag()
    if check is not None:
        show, replace_shown_text = check.wrap_show_callbacks(show, replace_shown_text)
    text_callbacks = (show, stop_flag.count_answer_chars)
    answer = _AnswerBuilder(
        prompt, text_callbacks, replace_shown_text, show_wait, clock, limit, provider, check
    )
    try:
        if not stop_flag.is_requested:
            with stop_flag.stoppable_block():
                await _stream_answer(backend, prompt, answer, may_continue, tools)
    except BackendInterrupted as error:
        if not answer.has_text:
            raise
        was_interrupted = True
        prefill_seconds = answer.first_word_seconds
        _log.warning("answer_interrupted", reason=str(error), prefill_seconds=prefill_seconds)
    result = answer.build(was_interrupted=was_interrupted, was_cancelled=stop_flag.is_requested)
    return replace(result, tool_calls=tuple(tools.call_records)) if tools is not None else result


async def _stream_answer(
    backend: Backend,
    prompt: Prompt,
    answer: "_AnswerBuilder",
    may_continue: Callable[[], Awaitable[bool]],
    tools: Toolbox | None,
) -> None:
    """Add the events of an answer to the builder, with further requests after tool calls."""
    if tools is None:
        await _stream_request(backend, prompt, answer, may_continue)
        return
    request = tools.next_prompt(prompt)
    await _stream_request(backend, request, answer, may_continue)
    while (
        tools.has_rounds_left
        and not answer.is_complete
        and (finish := answer.finish_event).tool_calls
    ):
        if not await may_continue():
            _log.warning("tool_round_over_budget", calls=len(finish.tool_calls))
            return
        await tools.run_round(answer.begin_next_request(), finish)
        if tools.has_ended():
            return
        request = tools.next_prompt(prompt)
        try:
            await _add_events(backend, request, answer)
        except BackendUnavailable as error:  # the previous requests must be charged
            is_too_long = isinstance(error, ContextExceeded)
            error_class = ToolResultsTooLong if is_too_long else BackendInterrupted
            raise error_class(str(error), error.notice) from error


async def _stream_request(
    backend: Backend,
    prompt: Prompt,
    answer: "_AnswerBuilder",
    may_continue: Callable[[], Awaitable[bool]],
) -> None:
    """Add the events of a request to the builder; continue once if the stream is cut off."""
    try:
        await _add_events(backend, prompt, answer)
    except BackendInterrupted as error:
        text_so_far = answer.unfiltered_text.rstrip()
        can_continue = error.can_continue and text_so_far and backend.can_continue(prompt)
        if not can_continue or not await may_continue():
            raise
        _log.info("answer_continued", reason=str(error))
        answer.begin_continuation()
        try:
            await _add_events(backend, replace(prompt, begun=text_so_far), answer)
        except BackendUnavailable as failure:
            raise BackendInterrupted(str(failure), failure.notice) from failure


async def _add_events(backend: Backend, prompt: Prompt, answer: "_AnswerBuilder") -> None:
    with answer.trace_request(prompt):
        async with aclosing(backend.generate(prompt)) as stream:
            async for event in stream:
                answer.add(event)
                if answer.check is not None:
                    await answer.check.moderate_new_text()
                if answer.is_complete:  # leaving the stream makes the model stop
                    break


def describe_ending(reason: FinishReason | None, calls: Sequence[ToolRecord] = ()) -> Text | None:
    """Return a note that says why an answer is incomplete and which tools it used, or None."""
    ending_note = _ENDING_NOTES.get(reason)
    hidden_names = {UNKNOWN_TOOL_NAME, REACT_TOOL}  # a reaction is visible by itself
    names = ", ".join(dict.fromkeys(one.name for one in calls if one.name not in hidden_names))
    tools_note = translatable("🔧 tools used: {tools}", tools=names) if names else None
    notes = [one for one in (ending_note, tools_note) if one]
    return join_texts(["", *notes], "\n\n") if notes else None


def build_receipt(
    answer: GeneratedAnswer,
    fitted_prompt: FittedPrompt,
    preset: Preset,
    version: int | None,
    charge: AnswerCharge,
    scopes: tuple[str, ...] = (),
    *,
    queued_seconds: float = 0.0,
    compose_seconds: float = 0.0,
    received_at: float | None = None,
) -> Receipt:
    """Return the receipt of an answer: its prompt, what was dropped, and its cost."""
    return Receipt(
        preset=preset.name,
        preset_version=version,
        provider=preset.provider,
        prompt=_remove_pictures(fitted_prompt),
        layout=fitted_prompt.draft.layout,
        dropped=fitted_prompt.dropped_items,
        tokens=fitted_prompt.tokens,
        limit=fitted_prompt.limit,
        answer=answer.text,
        thoughts=answer.thoughts,
        reason=answer.reason,
        usage=answer.usage,
        tool_calls=answer.tool_calls,
        timings=Timings(
            queued_seconds,
            answer.first_word_seconds,
            answer.seconds,
            compose_seconds,
            received_at=received_at,
        ),
        charge=charge,
        scopes=scopes,
    )


def _remove_pictures(fitted_prompt: FittedPrompt) -> Prompt:
    prompt = fitted_prompt.prompt
    if not fitted_prompt.draft.images:
        return prompt
    position = len(prompt.messages) - 1 - len(fitted_prompt.draft.closing_messages)
    messages = (
        replace(one, parts=()) if at == position else one for at, one in enumerate(prompt.messages)
    )
    return replace(prompt, messages=tuple(messages))


@dataclass(eq=False)
class _AnswerBuilder:
    """Builds an answer from the events of one or more requests."""

    prompt: Prompt
    show_callbacks: Sequence[Callable[[str], None]]
    replace_shown_text: Callable[[str], None]
    show_wait: Callable[[Waiting], None]
    clock: Clock
    limit: VisibleTokenLimit | None
    provider: str
    check: AnswerCheck | None = None

    def __post_init__(self) -> None:
        self._visible_token_count = 0
        self._reset_filters()
        self._thought_loop_detector = RepetitionDetector()
        self._chunks: list[str] = []
        self._raw_chunks: list[str] = []
        self._text_to_continue = ""
        self._repeat_filter: RepeatedStartFilter | None = None
        self._reasoning_chunks: list[str] = []
        self.finish_event = Finish(FinishReason.STOP)
        """The event that ended the newest request, with its tool calls."""
        self._usages: list[Usage] = []
        self._request_start = self._first_chunk_index = 0
        self._started_at = self.clock.monotonic()
        self.first_word_seconds: float | None = None
        """The time from the request to the first text; None: no text has arrived."""

    @property
    def has_text(self) -> bool:
        return bool("".join(self._chunks).strip())

    def begin_next_request(self) -> str:
        """Start the next request, and return the text of the previous request."""
        if self._repeat_filter is not None:
            self._feed(self._repeat_filter.finish())
            self._repeat_filter = None
        request_text = self.unfiltered_text[self._request_start :]
        self._usages.append(self.finish_event.usage)
        self.finish_event = Finish(FinishReason.STOP)
        if request_text.strip():
            self._feed("\n\n")
        self._request_start, self._first_chunk_index = len(self.unfiltered_text), len(self._chunks)
        return request_text

    @property
    def unfiltered_text(self) -> str:
        return "".join(self._raw_chunks)

    @property
    def is_complete(self) -> bool:
        """Whether to stop: the text is too long, repetitive, refused, or another speaker's."""
        is_refused = self.check is not None and self.check.is_refused
        return self._echo_filter.has_ended or self._is_repeating or self._is_too_long or is_refused

    def add(self, event: GenerationEvent) -> None:
        match event:
            case Delta(text):
                if self.first_word_seconds is None:
                    self.first_word_seconds = self.clock.monotonic() - self._started_at
                    SECONDS_TO_FIRST_TOKEN.observe(self.first_word_seconds)
                self._add_text(text.replace("\0", ""))  # PostgreSQL cannot store NUL
            case ReasoningDelta(text):
                self._reasoning_chunks.append(text.replace("\0", ""))
                self._thought_loop_detector.feed(text)
            case Retraction():
                self._move_text_to_reasoning()
            case Finish():
                self.finish_event = event
                record_usage(event.usage)
            case QueuePosition() | RateLimitWait():
                self.show_wait(event)

    @contextmanager
    def trace_request(self, prompt: Prompt) -> Iterator[None]:
        """Record the request in the block as a tracing span of the message."""
        started_at, error_name = self.clock.now(), None
        try:
            yield
        except BackendError as exception:
            error_name = type(exception).__name__
            raise
        finally:
            usage = self.finish_event.usage
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": self.provider,
                "gen_ai.request.model": prompt.model,
                "gen_ai.response.finish_reasons": [str(self.finish_event.reason)],
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
            }
            name, ended_at = f"chat {prompt.model}", self.clock.now()
            span_options = {"attributes": attributes, "error": error_name, "is_remote_call": True}
            record_span(name, None, started_at, ended_at, **span_options)

    def _reset_filters(self) -> None:
        self._echo_filter = EchoFilter(self.prompt.answers_as, self.prompt.speakers)
        self._output_filter = OutputFilter(self.prompt.filtered)
        self._token_filter = SecretTokenFilter()
        self._text_loop_detector = RepetitionDetector()

    def _move_text_to_reasoning(self) -> None:
        self._reasoning_chunks += self._chunks[self._first_chunk_index :]
        del self._chunks[self._first_chunk_index :]
        self._raw_chunks = [self.unfiltered_text[: self._request_start]]
        self._visible_token_count = 0
        self._reset_filters()
        self.replace_shown_text("".join(self._chunks))

    def begin_continuation(self) -> None:
        """Treat the next text as a continuation of the text so far."""
        self._text_to_continue = self.unfiltered_text
        self._repeat_filter = RepeatedStartFilter(self._text_to_continue)

    def build(self, *, was_interrupted: bool, was_cancelled: bool) -> GeneratedAnswer:
        if self._repeat_filter is not None and not was_interrupted:
            self._feed(self._repeat_filter.finish())
        held_back_text = self._output_filter.feed(self._echo_filter.finish())
        self._show(self._token_filter.feed(held_back_text + self._output_filter.finish()))
        self._show(self._token_filter.finish())
        text = self._text_loop_detector.remove_repetition("".join(self._chunks)).strip()
        reason = None if was_interrupted else self.finish_event.reason
        if self._is_too_long:
            reason = FinishReason.LENGTH
        ends_with_loop = reason is FinishReason.LENGTH and ends_in_loop(text)
        if self._is_repeating or ends_with_loop:
            reason = FinishReason.REPETITION
        return GeneratedAnswer(
            text=text,
            reason=FinishReason.CANCELLED if was_cancelled else reason,
            usage=reduce(Usage.__add__, self._usages, self.finish_event.usage),
            first_word_seconds=self.first_word_seconds,
            seconds=self.clock.monotonic() - self._started_at,
            thoughts=mask_pasted_tokens("".join(self._reasoning_chunks).strip()),
            interrupted_text=self._text_to_continue,
        )

    @property
    def _is_repeating(self) -> bool:
        return self._text_loop_detector.has_repetition or self._thought_loop_detector.has_repetition

    @property
    def _is_too_long(self) -> bool:
        return self.limit is not None and self._visible_token_count >= self.limit.tokens

    def _add_text(self, text: str) -> None:
        if self.limit is not None:
            self._visible_token_count += sum(self.limit.count_tokens([text]))
        self._feed(text if self._repeat_filter is None else self._repeat_filter.feed(text))

    def _feed(self, text: str) -> None:
        self._raw_chunks.append(text)
        text = self._output_filter.feed(self._echo_filter.feed(text))
        self._show(self._token_filter.feed(text))

    def _show(self, text: str) -> None:
        self._chunks.append(text)
        self._text_loop_detector.feed(text)
        for show in self.show_callbacks:
            show(text)
