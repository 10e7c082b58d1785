"""Run a chat request with timeouts, retries, a circuit breaker, and streaming."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Self

import msgspec
import structlog

from bot.backends.chat_completions import errors, retries
from bot.backends.chat_completions.errors import ContextOverflow, Endpoint, RequestFailed
from bot.backends.chat_completions.reasoning import ANY_FORMAT, ReasoningFormat
from bot.backends.chat_completions.retries import CircuitBreaker, RetryBudget
from bot.backends.chat_completions.streaming import ResponseContext, StreamParser
from bot.backends.spec import ProviderSettings
from bot.chat.operation import ModelHealth
from bot.chat.prompt import (
    Delta,
    Finish,
    FinishReason,
    GenerationEvent,
    RateLimitWait,
    ReasoningDelta,
    Retraction,
)
from bot.errors import BackendInterrupted, BackendUnavailable, ContextExceeded, TroupeError
from bot.ports import Clock
from bot.runtime.clock import SystemClock
from bot.runtime.http_client import (
    SUSPENSION_THRESHOLD_SECONDS,
    ConnectionFailed,
    HttpClient,
    HttpResponse,
)
from bot.texts.text import translatable
from bot.value_class import value_class

REASONING_TIMEOUT_SECONDS = 120.0
_USAGE_TIMEOUT_SECONDS = 1.0  # to wait for the usage after the finish reason
_log = structlog.get_logger(__name__)
# Pauses between reads save CPU time. A short answer is complete after the first pause. For a longer
# one, 0.3 s is often enough: platforms show the first message after 0.8 s, and edit less often.
_READ_PAUSE_SECONDS = (0.2, 0.3)  # in seconds; the last one repeats, and may delay a stop that long
MAX_ERROR_BYTES = 64 * 1024
_CHECK_TIMEOUT_SECONDS = 10.0
_MAX_NAMED_MODELS = 8
_MIN_SIMILARITY = 0.5  # between an unknown model name and a suggestion
_NO_MODEL_LIST_STATUSES = frozenset({404, 405, 501})
_BREAKER_POLL_SECONDS = 0.25
_LOADING_POLL_SECONDS = 1.0
_BREAKER_OPEN_NOTICE = translatable(
    "The model's provider has failed several times in a row. Please try again in a minute."
)
_CUT_OFF_NOTICE = translatable("The model stopped in the middle of its answer. Please try again.")


class AnswerTimer:
    """Tracks the time left for one attempt. All attempts share the `deadline` (event loop time)."""

    def __init__(
        self,
        settings: ProviderSettings,
        endpoint: Endpoint,
        deadline: float,
        get_current_time: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._deadline = deadline
        self._get_current_time = get_current_time
        self._wait_seconds_left = settings.first_token_seconds
        # A slow self-hosted model also reasons longer.
        self._max_reasoning_seconds = max(REASONING_TIMEOUT_SECONDS, settings.first_token_seconds)
        self._reasoning_seconds_left: float | None = None  # None unless the model is reasoning
        self._has_text = False
        self._is_finished = False

    def record_progress(self, *, has_text: bool) -> None:
        """Record that the model sent output: text, or only reasoning if not `has_text`."""
        self._wait_seconds_left = self._settings.idle_seconds
        if has_text:
            self._has_text = True
            self._reasoning_seconds_left = None
        elif not self._has_text and self._reasoning_seconds_left is None:
            self._reasoning_seconds_left = self._max_reasoning_seconds

    def record_finish_reason(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._wait_seconds_left = _USAGE_TIMEOUT_SECONDS

    def begin_wait(self, pause_seconds: float = 0.0) -> Self:
        """Begin a wait in a `with` block, after an uncounted pause; raise `RequestFailed`."""
        self._wait_started_at = start_time = self._get_current_time() + pause_seconds
        if start_time > self._deadline:
            raise self._timeout_error(start_time)
        self._wait_ends_at = min(start_time + self._wait_seconds_left, self._deadline)
        if self._reasoning_seconds_left is not None:
            self._wait_ends_at = min(self._wait_ends_at, start_time + self._reasoning_seconds_left)
        return self

    def __enter__(self) -> float:
        return self._wait_ends_at

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Deduct the wait from the remaining time, and raise a timeout as `RequestFailed`."""
        start_time, now = self._wait_started_at, self._get_current_time()
        overrun_seconds = now - self._wait_ends_at
        self._reduce_time_left(start_time, now, overrun_seconds)
        if isinstance(error, TimeoutError):
            if overrun_seconds > SUSPENSION_THRESHOLD_SECONDS:
                raise errors.suspended_timeout_error(self._endpoint) from None
            raise self._timeout_error(now) from None

    def _reduce_time_left(self, wait_started_at: float, now: float, overrun_seconds: float) -> None:
        if overrun_seconds > SUSPENSION_THRESHOLD_SECONDS:  # time while suspended does not count
            self._deadline += overrun_seconds
            now -= overrun_seconds
        if now > wait_started_at:
            self._wait_seconds_left -= now - wait_started_at
            if self._reasoning_seconds_left is not None:
                self._reasoning_seconds_left -= now - wait_started_at

    def _timeout_error(self, now: float) -> RequestFailed:
        settings = self._settings
        if now >= self._deadline:
            limit = (settings.total_seconds, "TOTAL_SECONDS")
            return errors.timeout_error(self._endpoint, "no complete answer", *limit)
        if self._has_text:
            limit = (settings.idle_seconds, "IDLE_SECONDS")
            return errors.timeout_error(self._endpoint, "no next token", *limit)
        if self._reasoning_seconds_left is None:
            limit = (settings.first_token_seconds, "FIRST_TOKEN_SECONDS")
            return errors.timeout_error(self._endpoint, "no first token", *limit, is_down=True)
        limit = (self._max_reasoning_seconds, "FIRST_TOKEN_SECONDS")
        return errors.timeout_error(self._endpoint, "no answer after its reasoning", *limit)


@value_class
class ChatRequest:
    path: str
    body: Mapping[str, object]
    model: str
    stop_strings: Sequence[str]
    reasoning: ReasoningFormat = ANY_FORMAT
    parameter_names: Collection[str] = ()
    """Request parameters whose names may be quoted from the provider's error message."""
    has_fallback: bool = False
    headers: Mapping[str, str] | None = None
    is_continuation: bool = False
    """Whether the request continues an interrupted answer; it then counts as a retry."""
    build_without_system_role: "Callable[[], ChatRequest] | None" = None
    """Builds the request that is sent instead if the model rejects system messages."""


class HttpStatusError(TroupeError):
    """An HTTP response with an error status, and the beginning of its body."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class NoModelList(TroupeError):
    """A service returned no model list; the message says what it returned."""


class ChatRequestRunner:
    """Runs requests with a shared retry budget and one circuit breaker per model."""

    def __init__(
        self,
        settings: ProviderSettings,
        endpoint: Endpoint,
        post: Callable[..., Awaitable[HttpResponse]],
        make_parser: Callable[[ResponseContext], StreamParser],
        *,
        max_retries: int = retries.MAX_RETRIES,
        make_breaker: Callable[[], CircuitBreaker] = CircuitBreaker,
        clock: Clock | None = None,
        random_source: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._send = post
        self._make_parser = make_parser
        self._max_retries = max_retries
        self._clock = clock or SystemClock()
        self._random = random_source or random.SystemRandom()
        self._retry_budget = RetryBudget()
        self._lasting_errors: dict[str, tuple[float, RequestFailed]] = {}
        """By model: until when requests with a fallback skip it, and its last error."""
        self._unmatched_end_tags: dict[str, str] = {}
        """By model: the end tag of its last reasoning that had no start tag."""
        self._breakers = defaultdict[str, CircuitBreaker](make_breaker)

    def model_health(self) -> Sequence[ModelHealth]:
        """Return each model's latest failures, and whether its circuit breaker is open."""
        return [
            ModelHealth(name, breaker.is_open, len(breaker.outcomes), breaker.outcomes.count(False))
            for name, breaker in self._breakers.items()
        ]

    async def run(
        self,
        request: ChatRequest,
        report_prompt_tokens: Callable[[int], None] | None = None,
        report_context_overflow: Callable[[ContextOverflow], None] | None = None,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Send a request, stream its answer like `Backend.generate`, and report prompt lengths."""
        get_current_time = asyncio.get_running_loop().time
        deadline = get_current_time() + self._settings.total_seconds
        load_deadline = self._clock.monotonic() + self._settings.first_token_seconds
        retry_count = 0
        breaker = self._breakers[request.model]
        self._raise_if_still_failing(request)
        self._record_call_or_spend_retry(request, breaker)
        while True:
            await self._wait_for_breaker(breaker, request)
            is_trial_call = breaker.is_open
            has_text = False
            try:
                timer = AnswerTimer(self._settings, self._endpoint, deadline, get_current_time)
                async with aclosing(self._stream_answer_once(request, timer)) as events:
                    async for event in events:
                        if isinstance(event, Delta | Retraction):
                            has_text = isinstance(event, Delta)
                        elif report_prompt_tokens is not None and isinstance(event, Finish):
                            report_prompt_tokens(event.usage.prompt_tokens)
                        yield event
            except RequestFailed as error:
                breaker.record_outcome(
                    self._clock.monotonic(),
                    succeeded=not error.counts_as_failure,
                    is_service_down=error.is_service_down and not has_text,
                    is_retry=retry_count > 0,
                    is_trial=is_trial_call,
                )
                self._skip_model_if_error_lasts(error, request.model)
                if has_text:
                    raise _to_backend_interrupted(error) from error
                # A failed trial call is not retried; the next message is the next trial.
                gives_up = breaker.is_open and (is_trial_call or request.has_fallback)
                retry_args = (request, retry_count, load_deadline)
                pause_seconds = None if gives_up else self._choose_retry_pause(error, *retry_args)
                if pause_seconds is None or pause_seconds >= deadline - get_current_time():
                    raise _to_backend_unavailable(error, report_context_overflow) from error
                rate_limit_event = self._log_and_report_retry(error, request, pause_seconds)
            else:
                breaker.record_outcome(self._clock.monotonic(), succeeded=True)
                self._lasting_errors.pop(request.model, None)
                return
            retry_count += 1
            if rate_limit_event is not None:
                yield rate_limit_event
            await self._clock.sleep(pause_seconds)

    def _log_and_report_retry(
        self, error: RequestFailed, request: ChatRequest, pause_seconds: float
    ) -> RateLimitWait | None:
        names = {"provider": self._endpoint.name, "model": request.model}
        _log.info("request_retried", **names, seconds=round(pause_seconds, 1), reason=str(error))
        return RateLimitWait(pause_seconds) if error.retry_after_seconds else None

    def _raise_if_still_failing(self, request: ChatRequest) -> None:
        """Raise the model's last error again if it probably persists and a fallback can answer."""
        error_expires_at, error = self._lasting_errors.get(request.model, (0.0, None))
        if error is None or not request.has_fallback:
            return
        if self._clock.monotonic() < error_expires_at:
            raise BackendUnavailable(str(error), error.notice) from error
        self._skip_model_if_error_lasts(error, request.model)  # lets this request try it again

    def _skip_model_if_error_lasts(self, error: RequestFailed, model: str) -> None:
        if error.affects_all_prompts:
            error_expires_at = self._clock.monotonic() + retries.LASTING_ERROR_SKIP_SECONDS
            self._lasting_errors[model] = error_expires_at, error
        else:
            self._lasting_errors.pop(model, None)

    def _record_call_or_spend_retry(self, request: ChatRequest, breaker: CircuitBreaker) -> None:
        if not request.is_continuation:
            self._retry_budget.record_call()
        elif breaker.is_open or not self._retry_budget.try_spend_retry():
            raise BackendUnavailable(
                f"{self._endpoint} fails too often, so the answer cannot be continued"
            )

    async def _wait_for_breaker(self, breaker: CircuitBreaker, request: ChatRequest) -> None:
        """Wait until the breaker allows a call; raise `BackendUnavailable` if it stays open."""
        max_wait_seconds = 0.0 if request.has_fallback else retries.MAX_BREAKER_WAIT_SECONDS
        give_up_at = self._clock.monotonic() + max_wait_seconds
        earlier_failure_count = breaker.failed_trial_count
        while not breaker.allows_call(self._clock.monotonic()):
            trial_failed = breaker.failed_trial_count > earlier_failure_count
            if trial_failed or self._clock.monotonic() >= give_up_at:
                raise BackendUnavailable(
                    f"{self._endpoint} fails too often with {request.model!r}; calls are paused",
                    _BREAKER_OPEN_NOTICE,
                )
            await self._clock.sleep(_BREAKER_POLL_SECONDS)

    def _choose_retry_pause(
        self, error: RequestFailed, request: ChatRequest, retry_count: int, load_deadline: float
    ) -> float | None:
        if error.is_model_loading and self._clock.monotonic() < load_deadline:
            return None if request.has_fallback else _LOADING_POLL_SECONDS
        if not error.is_retryable or retry_count >= self._max_retries:
            return None
        max_wait_seconds = retries.MAX_RETRY_AFTER_SECONDS
        if request.has_fallback:
            max_wait_seconds = retries.MAX_WAIT_BEFORE_FALLBACK_SECONDS
        if error.retry_after_seconds > max_wait_seconds or not self._retry_budget.try_spend_retry():
            return None
        jitter = self._random.uniform(0, retries.max_backoff_seconds(retry_count))
        return error.retry_after_seconds + jitter

    async def _stream_answer_once(
        self, request: ChatRequest, timer: AnswerTimer
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Send the request once and stream its answer; closing the generator stops the model.

        Raises `RequestFailed`.
        """
        try:
            response = await self._post(request, timer)
        except RequestFailed as error:
            if not (error.rejects_system_role and request.build_without_system_role):
                raise
            response = await self._post(request.build_without_system_role(), timer)
        try:
            parser = self._create_parser(response, request)
            read_pauses = iter(_READ_PAUSE_SECONDS)
            pause_seconds = 0.0
            while not parser.is_done:
                chunk = await self._read_chunk(response, parser, timer, pause_seconds)
                parsed_chunk = parser.feed(chunk) if chunk else parser.parse_end()
                if parsed_chunk.has_model_output:
                    timer.record_progress(has_text=bool(parsed_chunk.text))
                if parser.finish_reason is not None:
                    timer.record_finish_reason()
                if parsed_chunk.retracts_earlier_text:
                    yield Retraction()
                if parsed_chunk.reasoning:
                    yield ReasoningDelta(parsed_chunk.reasoning)
                if parsed_chunk.text:
                    yield Delta(parsed_chunk.text)
                if parsed_chunk.error and parser.finish_reason is None:
                    raise parsed_chunk.error
                # No pause after a keep-alive: it would not count toward the timeouts.
                answer_continues = parsed_chunk.has_model_output and parser.finish_reason is None
                pause_seconds = (
                    next(read_pauses, _READ_PAUSE_SECONDS[-1]) if answer_continues else 0.0
                )
        finally:
            await response.close()
        self._remember_unmatched_end_tag(parser, request.model)
        yield parser.final_event

    def _remember_unmatched_end_tag(self, parser: StreamParser, model: str) -> None:
        if parser.unmatched_end_tag is not None:
            self._unmatched_end_tags[model] = parser.unmatched_end_tag
        elif parser.finish_reason is FinishReason.STOP:
            self._unmatched_end_tags.pop(model, None)

    def _create_parser(self, response: HttpResponse, request: ChatRequest) -> StreamParser:
        content_type_header = response.headers.get("content-type", "")
        content_type = content_type_header.partition(";")[0].strip().lower()
        if content_type == "text/html":
            raise errors.bad_response_error(self._endpoint, "a web page")
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            problem = "a compressed response, which was not requested"
            raise errors.bad_response_error(self._endpoint, problem)
        reasoning = request.reasoning
        if (end_tag := self._unmatched_end_tags.get(request.model)) and not request.is_continuation:
            reasoning = replace(reasoning, assumed_end_tag=end_tag)
        context = ResponseContext(
            self._endpoint,
            request.model,
            request.stop_strings,
            is_streamed=content_type != "application/json",
            now=self._clock.now(),
            reasoning=reasoning,
        )
        return self._make_parser(context)

    async def _read_chunk(
        self, response: HttpResponse, parser: StreamParser, timer: AnswerTimer, pause_seconds: float
    ) -> bytes:
        try:
            with timer.begin_wait(pause_seconds) as deadline:
                return await response.read(deadline, pause_seconds)
        except (RequestFailed, ConnectionFailed) as error:
            if parser.finish_reason is not None:
                return b""  # the answer is complete, only its usage is missing
            if isinstance(error, RequestFailed):
                raise
            raise errors.early_end_error(self._endpoint, str(error)) from error

    async def _post(self, request: ChatRequest, timer: AnswerTimer) -> HttpResponse:
        error_converter = translate_failures(self._endpoint, request.model, request.parameter_names)
        with timer.begin_wait() as deadline, error_converter:
            return await self._send(request.path, request.body, deadline, request.headers)

    async def check(
        self,
        model_list: Awaitable[Sequence[str]],
        models: Sequence[str] = (),
        *,
        is_list_complete: bool = True,
    ) -> str:
        """Return a description of the service. Raises `BackendUnavailable` if it does not answer.

        If `is_list_complete`, it is also an error if the service does not list one of the models.
        """
        names = await self.fetch_model_list(model_list, next(iter(models), "default"))
        if names is None:
            endpoint = self._endpoint
            return f"answers at {endpoint.base_url}, but lists no models{endpoint.path_hint}"
        missing_models = [model for model in models if not _is_listed(model, names)]
        if missing_models and is_list_complete:
            problem = f"{self._endpoint} has no model {{!r}} at {self._endpoint.base_url}; {{}}"
            problem_lines = [
                problem.format(name, _suggest_models(name, names)) for name in missing_models
            ]
            raise BackendUnavailable("\n".join(problem_lines))
        missing_models_note = (
            f", but does not list {', '.join(missing_models)}" if missing_models else ""
        )
        return f"answers at {self._endpoint.base_url}{missing_models_note}"

    async def fetch_model_list(
        self, model_list: Awaitable[Sequence[str]], model: str = "default"
    ) -> Sequence[str] | None:
        """Return the service's models, or None if it has no model list.

        Raises `BackendUnavailable` if it does not answer.
        """
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_SECONDS):
                return await model_list
        except HttpStatusError as error:
            got_web_page = is_web_page(error.body)
            if got_web_page and error.status == HTTPStatus.NOT_FOUND:
                raise self._wrong_address_error(f"a web page ({error.status})") from error
            # Not every service has a model list, but every service reports a wrong key.
            if error.status in _NO_MODEL_LIST_STATUSES and not got_web_page:
                return None
            failure = translate_http_error(self._endpoint, model, error)
        except NoModelList as error:
            raise self._wrong_address_error(str(error)) from error
        except (ConnectionFailed, TimeoutError) as error:
            failure = errors.unreachable_error(self._endpoint, str(error) or type(error).__name__)
        raise BackendUnavailable(str(failure), failure.notice) from failure

    def _wrong_address_error(self, problem: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"{self._endpoint} sent {problem} instead of a list of its models; check"
            f" {self._endpoint.setting_name('BASE_URL')} ({self._endpoint.base_url}): the addresses"
            " of most APIs end in /v1"
        )


def translate_http_error(
    endpoint: Endpoint, model: str, error: HttpStatusError, parameter_names: Collection[str] = ()
) -> RequestFailed:
    return errors.translate_status(
        *(endpoint, model, error.status, error.headers, error.body, time.time(), parameter_names)
    )


def _to_backend_interrupted(error: RequestFailed) -> BackendInterrupted:
    notice = error.notice or _CUT_OFF_NOTICE
    return BackendInterrupted(str(error), notice, can_continue=error.is_retryable)


def _to_backend_unavailable(
    error: RequestFailed, report_context_overflow: Callable[[ContextOverflow], None] | None
) -> BackendUnavailable:
    if error.context_overflow is None or report_context_overflow is None:
        return BackendUnavailable(str(error), error.notice)
    report_context_overflow(error.context_overflow)
    return ContextExceeded(str(error), error.notice)


def resolve_default_model(name: str, settings: ProviderSettings, endpoint: Endpoint) -> str:
    if name != "default":
        return name
    if settings.model is None:
        raise BackendUnavailable(
            f"{endpoint} has no default model; set {endpoint.setting_name('MODEL')}",
            translatable("This preset has no model; the bot's operator has to choose one."),
        )
    return settings.model


def _is_listed(model: str, models: Collection[str]) -> bool:
    """Return whether a model is listed, even with a tag (Ollama), folder (Gemini), or wildcard."""
    names = {model, f"{model}:latest", f"models/{model}"}
    if "/" in model:
        names.add(model.rpartition(":")[0])  # OpenRouter adds options: vendor/model:online
    wildcards = (name for name in models if "*" in name)
    return not names.isdisjoint(models) or any(fnmatchcase(model, pattern) for pattern in wildcards)


def _suggest_models(model: str, models: Sequence[str]) -> str:
    if not models:
        return "it lists none"
    names = {name.lower(): name for name in models}
    matches = get_close_matches(model.lower(), names, n=1, cutoff=_MIN_SIMILARITY)
    first_models = ", ".join(models[:_MAX_NAMED_MODELS])
    if not matches:
        return f"it has {first_models}"
    return f"did you mean {names[matches[0]]!r}? Available models: {first_models}"


def read_model_list(body: bytes) -> Sequence[str]:
    """Parse a model list in OpenAI's or Ollama's format, or a bare list; raise `NoModelList`."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise NoModelList("a web page" if is_web_page(body) else "invalid JSON") from None
    items = decoded
    if isinstance(decoded, dict):
        if decoded.get("error"):
            raise NoModelList("an error object")
        key = next((name for name in ("data", "models") if name in decoded), None)
        items = decoded if key is None else decoded[key] or []  # Ollama without models lists null
    if not isinstance(items, list):
        raise NoModelList("other JSON")
    names = (one.get("id") or one.get("name") if isinstance(one, dict) else one for one in items)
    return [name for name in names if isinstance(name, str)]


def is_web_page(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<"


@contextmanager
def translate_failures(
    endpoint: Endpoint, model: str, parameter_names: Collection[str] = ()
) -> Iterator[None]:
    """Translate exceptions of a request to `RequestFailed`, except `TimeoutError`."""
    try:
        yield
    except HttpStatusError as error:
        raise translate_http_error(endpoint, model, error, parameter_names) from None
    except ConnectionFailed as error:
        raise errors.unreachable_error(endpoint, str(error)) from error


async def request_with_idle_retry(
    client: HttpClient,
    method: str,
    path: str,
    body: bytes | None,
    deadline: float,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """Send a request; retry once if the server, such as llama.cpp, closed the idle connection."""
    try:
        return await client.request(method, path, body, deadline, headers=headers)
    except ConnectionFailed as error:
        if not error.was_connection_idle:
            raise
        return await client.request(method, path, body, deadline, headers=headers)


async def post_json(
    client: HttpClient,
    path: str,
    body: Mapping[str, object],
    deadline: float,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    data = msgspec.json.encode(body)
    response = await request_with_idle_retry(client, "POST", path, data, deadline, headers)
    await raise_for_status(response, deadline)
    return response


async def raise_for_status(response: HttpResponse, deadline: float) -> None:
    """Raise `HttpStatusError` with the start of the body if the status is an error or redirect."""
    if response.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    async with response:
        body = await response.read_all(deadline, MAX_ERROR_BYTES)
    raise HttpStatusError(response.status, response.headers, body)
