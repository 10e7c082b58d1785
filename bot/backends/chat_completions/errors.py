"""Translate provider errors into messages for the operator and notices for the chat."""

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import msgspec
from typing_extensions import override

from bot.backends.chat_completions.retries import find_wait_seconds
from bot.errors import TroupeError
from bot.texts.text import Text, translatable
from bot.value_class import value_class

_MIN_CONTEXT_TOKENS = 128  # a smaller number in an error is not a context size
_MAX_NUMBER_DIGITS = 10
_NUMBER_PATTERN = r"(\d[\d,_']*)"
_EQUALS_PATTERN = r"(?:(?:\s?(?:is|of|are|=|:|\(|only|currently|set to)){1,3}\s?)"
_TRANSIENT_STATUSES = frozenset({408, 409, 429})
_OVERLOADED_STATUS = 529  # Anthropic's status
_CODE_PATTERN = re.compile(r"[A-Za-z][\w.-]{0,63}")
_MIN_SHOWN_WAIT_SECONDS = 5.0
_BUSY_NOTICE = translatable("The model is busy right now. Please try again in a moment.")
_LOADING_NOTICE = translatable(
    "The model is still being loaded. Please try again in a few minutes."
)
_CONFIGURATION_NOTICE = translatable(
    "The model is not configured correctly; the bot's operator has to fix it."
)
_NOTICES_BY_KIND = {
    "too long": translatable(
        "This conversation has become longer than the model can read. Start a new one with /new."
    ),
    "no credit": translatable(
        "The bot's account with the model's provider has no credit left; the bot's operator has to"
        " add some."
    ),
    "day used up": translatable(
        "The bot has used up its daily limit with the model's provider. Please try again later."
    ),
    "content rules": translatable(
        "The model's provider refuses to answer this because of its content rules. Please rephrase,"
        " or start over with /new."
    ),
    "unknown model": translatable(
        "This preset's model does not exist at its provider. An admin can choose another preset"
        " with /preset; the bot's operator has to correct this one."
    ),
    "wrong key": translatable(
        "The model's provider does not accept the bot's key; the bot's operator has to renew it."
    ),
}


@value_class
class ContextOverflow:
    """The length of a rejected prompt and the model's limit, in tokens; None if not reported."""

    context_tokens: int | None
    prompt_tokens: int | None


@value_class
class _KnownError:
    """A kind of error that a retry cannot fix (errors.toml)."""

    kind: str
    message: str
    words: re.Pattern[bytes] | None = None
    http_statuses: Collection[int] = ()
    is_permanent: bool = False
    affects_all_prompts: bool = False

    def matches(self, status: int, body: bytes) -> bool:
        match = self.words.search(body) if self.words else None
        if match and match.groupdict().get("tokens"):
            # vLLM words both alike: if the limit is below the context size, the prompt is too long.
            context = parse_context_overflow(body).context_tokens
            return context is None or int(match["tokens"]) >= context
        return match is not None or status in self.http_statuses


def _compile_alternatives(patterns: Iterable[str]) -> re.Pattern[bytes]:
    return re.compile("|".join(patterns).encode(), re.IGNORECASE)


def _compile_number_patterns(patterns: Iterable[str]) -> list[re.Pattern[str]]:
    expanded_patterns = (
        text.replace("NUMBER", _NUMBER_PATTERN).replace("IS", _EQUALS_PATTERN) for text in patterns
    )
    return [re.compile(pattern, re.IGNORECASE) for pattern in expanded_patterns]


_CATALOG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_KNOWN_ERRORS = [
    _KnownError(**{**row, "words": _compile_alternatives(row["words"]) if "words" in row else None})
    for row in _CATALOG["refusals"]
]
_ERROR_PATTERNS = {name: _compile_alternatives(words) for name, words in _CATALOG["words"].items()}
_CONTEXT_TOKENS_PATTERNS, _PROMPT_TOKENS_PATTERNS = (
    _compile_number_patterns(_CATALOG["figures"][name]) for name in ("context", "prompt")
)


def parse_context_overflow(body: bytes) -> ContextOverflow:
    """Parse a prompt's length and the model's limit from the body of an error response."""
    text = body.decode(errors="replace")
    limit = _find_first_number(_CONTEXT_TOKENS_PATTERNS, text)
    return ContextOverflow(limit, _find_first_number(_PROMPT_TOKENS_PATTERNS, text, limit))


def _find_first_number(
    patterns: Sequence[re.Pattern[str]], text: str, excluded_number: int | None = None
) -> int | None:
    for pattern in patterns:
        for match in pattern.finditer(text):
            digits = re.sub(r"\D", "", next(number for number in match.groups() if number))
            if (
                len(digits) < _MAX_NUMBER_DIGITS
                and _MIN_CONTEXT_TOKENS <= int(digits) != excluded_number
            ):
                return int(digits)
    return None


@dataclass(eq=False, repr=False)
class RequestFailed(TroupeError):
    """A failed attempt, which the request runner retries or raises as a `BackendError`."""

    message: str
    _: KW_ONLY
    notice: str = ""
    """The message for the chat; if empty, `BackendError`'s default is shown."""
    is_retryable: bool = False
    retry_after_seconds: float = 0
    counts_as_failure: bool = True
    """Whether the circuit breaker counts this error as a failure of the service."""
    affects_all_prompts: bool = False
    """Whether other prompts to the model would fail, too."""
    is_service_down: bool = False
    """Whether the service is down; the circuit breaker then opens sooner."""
    is_model_loading: bool = False
    """Whether the server is still loading the model; the request is retried until the first
    token is due."""
    rejects_system_role: bool = False
    context_overflow: ContextOverflow | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)


@value_class
class Endpoint:
    """A provider's id and address, for error messages."""

    name: str
    base_url: str

    def setting_name(self, field: str) -> str:
        """Return the environment variable for a setting `field` such as "API_KEY"."""
        return f"TROUPE_PROVIDERS__{self.name.upper()}__{field}"

    @property
    def path_hint(self) -> str:
        """A hint that the base URL should have a path, or "" if it already has one."""
        has_path = bool(urlsplit(self.base_url).path.strip("/"))
        return "" if has_path else "; the address usually ends in /v1"

    @override
    def __str__(self) -> str:
        return f"provider {self.name!r}"


def translate_status(
    endpoint: Endpoint,
    model: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    quotable_names: Collection[str] = (),
) -> RequestFailed:
    """Return the error to raise for an HTTP error response.

    The body may be truncated; `now` is in Unix seconds. The provider's own text may contain keys or
    prompts, so the message quotes only its error codes and the names in `quotable_names`.
    """
    if status >= HTTPStatus.BAD_REQUEST:
        refusal = _known_error(endpoint, model, status, body)
        if refusal is not None:
            return refusal
    if status == HTTPStatus.SERVICE_UNAVAILABLE and _ERROR_PATTERNS["loading"].search(body):
        return RequestFailed(
            f"{endpoint} is still loading the model {model!r} ({status}); try again later",
            notice=_LOADING_NOTICE,
            is_retryable=True,
            counts_as_failure=False,
            is_model_loading=True,
        )
    if status in _TRANSIENT_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        is_busy = status in {HTTPStatus.TOO_MANY_REQUESTS, _OVERLOADED_STATUS}
        wait_seconds = find_wait_seconds(headers, body, now)
        wait_hint = f"it asks you to wait {wait_seconds:g} s; " if wait_seconds else ""
        return RequestFailed(
            f"{endpoint} returned status {status}{_quote_codes(body)}; {wait_hint}try again later",
            notice=_build_busy_notice(wait_seconds) if is_busy or wait_seconds else "",
            is_retryable=True,
            retry_after_seconds=wait_seconds,
            is_service_down=status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        )
    if status < HTTPStatus.BAD_REQUEST:
        setting_name = endpoint.setting_name("BASE_URL")
        problem = f"redirects to another address ({status}); correct {setting_name}"
    elif status == HTTPStatus.BAD_REQUEST and _ERROR_PATTERNS["unreadable_image"].search(body):
        problem = "cannot read an image in the prompt (400); replace the image in the preset"
    else:
        quoted_details = _quote_codes(body) + _find_named_parameters(body, quotable_names)
        problem = f"rejected the request ({status}{quoted_details}); check the preset's parameters"
    message = f"{endpoint} {problem}"
    return RequestFailed(message, notice=_CONFIGURATION_NOTICE, counts_as_failure=False)


def _build_busy_notice(wait_seconds: float) -> Text:
    """Return the notice for a busy provider; mention the wait if it is long."""
    if wait_seconds < _MIN_SHOWN_WAIT_SECONDS:
        return _BUSY_NOTICE
    duration = format_duration(wait_seconds)
    return translatable("The model is busy right now. Please try again in {time}.", time=duration)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, or hours, rounded up: 45 s, 2 min, 3 h."""
    for unit_seconds, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit_seconds:
            return f"{math.ceil(seconds / unit_seconds)} {unit}"
    return f"{math.ceil(seconds)} s"


def _known_error(endpoint: Endpoint, model: str, status: int, body: bytes) -> RequestFailed | None:
    refusal = next((error for error in _KNOWN_ERRORS if error.matches(status, body)), None)
    # llama.cpp and proxies use 500 for errors that others report as 400.
    if refusal is None or (status > HTTPStatus.INTERNAL_SERVER_ERROR and refusal.kind != "memory"):
        return None
    is_permanent = refusal.is_permanent or _ERROR_PATTERNS["always_too_large"].search(body)
    if status in _TRANSIENT_STATUSES and not is_permanent:
        return None
    problem = refusal.message.format(
        status=status,
        codes=_quote_codes(body),
        model=model,
        address=endpoint.base_url,
        key=endpoint.setting_name("API_KEY"),
        base_url=endpoint.setting_name("BASE_URL"),
        path_hint=endpoint.path_hint,
    )
    return RequestFailed(
        f"{endpoint} {problem}",
        notice=_NOTICES_BY_KIND.get(refusal.kind, _CONFIGURATION_NOTICE),
        counts_as_failure=False,
        affects_all_prompts=refusal.affects_all_prompts,
        rejects_system_role=refusal.kind == "roles",
        context_overflow=parse_context_overflow(body) if refusal.kind == "too long" else None,
    )


def translate_error_event(
    endpoint: Endpoint,
    model: str,
    data: bytes,
    now: float,
    status_by_error_type: Mapping[str, int] = MappingProxyType({}),
) -> RequestFailed:
    """Return the error for a stream's error event, using `status_by_error_type`."""
    status = _find_status(data, status_by_error_type)
    if status is None:
        is_known_refusal = any(error.matches(0, data) for error in _KNOWN_ERRORS)
        status = HTTPStatus.BAD_REQUEST if is_known_refusal else HTTPStatus.BAD_GATEWAY
    return translate_status(endpoint, model, status, {}, data, now)


def early_end_error(endpoint: Endpoint, reason: str = "no finish_reason") -> RequestFailed:
    """Return the error for a stream that ended before its answer was complete."""
    return RequestFailed(f"{endpoint} ended the stream early: {reason}", is_retryable=True)


def bad_response_error(endpoint: Endpoint, problem: str) -> RequestFailed:
    message = f"{endpoint} sent {problem}; check {endpoint.setting_name('BASE_URL')}"
    return RequestFailed(message, is_retryable=True)


def unreachable_error(endpoint: Endpoint, reason: str) -> RequestFailed:
    """Return the error for a request that got no response."""
    message = f"{endpoint} cannot be reached at {endpoint.base_url}: {reason}"
    return RequestFailed(message, is_retryable=True, is_service_down=True)


def timeout_error(
    endpoint: Endpoint, problem: str, seconds: float, setting_field: str, *, is_down: bool = False
) -> RequestFailed:
    """Return the error for exceeding the timeout that `setting_field` sets; it is not retried."""
    setting_name = endpoint.setting_name(setting_field)
    remedy = f"use another provider or `fallbacks`, or raise {setting_name} to wait longer"
    message = f"{endpoint} sent {problem} within {seconds:g} s; {remedy}"
    return RequestFailed(message, affects_all_prompts=is_down, is_service_down=is_down)


def suspended_timeout_error(endpoint: Endpoint) -> RequestFailed:
    """Return the error for a request that timed out while this process was suspended."""
    message = f"{endpoint}: the request timed out because this process was suspended"
    return RequestFailed(message, is_retryable=True, counts_as_failure=False)


def _read_error_detail(body: bytes) -> Mapping[str, object]:
    """Return the fields that describe an error: nested, top-level (vLLM), or in a list (Gemini)."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    first_item = decoded[0] if isinstance(decoded, list) and decoded else decoded
    if not isinstance(first_item, dict):
        return {}
    error = first_item.get("error")
    return error if isinstance(error, dict) else first_item


def _quote_codes(body: bytes) -> str:
    detail = _read_error_detail(body)
    fields = (detail.get(name) for name in ("code", "type", "param"))
    codes = [word for word in fields if isinstance(word, str) and _CODE_PATTERN.fullmatch(word)]
    return "".join(f", {code}" for code in dict.fromkeys(codes))


def _find_named_parameters(body: bytes, quotable_names: Collection[str]) -> str:
    body_words = set(re.findall(rb"[a-z_]+", body))
    return "".join(f", {name}" for name in quotable_names if name.encode() in body_words)


def _find_status(data: bytes, status_by_error_type: Mapping[str, int]) -> int | None:
    detail = _read_error_detail(data)
    error_type, code = detail.get("type"), detail.get("code")
    if isinstance(error_type, str) and error_type in status_by_error_type:
        return status_by_error_type[error_type]
    # OpenRouter and llama.cpp put the HTTP status in `code`
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code)
    is_error_status = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < 600
    return code if isinstance(code, int) and is_error_status else None
