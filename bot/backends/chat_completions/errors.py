"""Translate a provider's failures into a message for the operator and a notice for the chat."""

import email.utils
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

import msgspec
from typing_extensions import override

from bot.errors import TroupeError

_TRANSIENT = frozenset({408, 409, 429})
_OVERLOADED = 529  # of Anthropic
_ERROR_CODE = re.compile(r"[A-Za-z][\w.-]{0,63}")
_PROMPT_TOO_LONG = re.compile(
    rb"context_length|context length|context size|context window|exceed_context|maximum context"
    rb"|prompt is too long|exceed context|request_too_large",
    re.IGNORECASE,
)
_QUOTA_USED_UP = re.compile(
    rb"insufficient_quota|insufficient balance|credit balance is too low", re.IGNORECASE
)
_UNREADABLE_IMAGE = re.compile(
    rb"failed to load image|image_parse_error|invalid_image|invalid_base64|not process image",
    re.IGNORECASE,
)

_NO_CREDIT = "has no credit left ({}); top up its account"
_BUSY_NOTICE = "The model is busy right now. Please try again in a moment."
_CONFIGURATION_NOTICE = "The model is not configured correctly; the bot's operator has to fix it."
_TOO_LONG_NOTICE = (
    "This conversation has become longer than the model can read. Start a new one with /new."
)


class RequestFailed(TroupeError):
    """One attempt failed; the request runner retries it or raises a `BackendError` from it."""

    def __init__(
        self,
        message: str,
        *,
        notice: str = "",
        retryable: bool = False,
        retry_after_seconds: float = 0,
        provider_unhealthy: bool = True,
    ) -> None:
        super().__init__(message)
        self.notice = notice
        """What the chat is told; empty: `BackendError`'s default."""
        self.retryable = retryable
        """The same request may succeed a little later."""
        self.retry_after_seconds = retry_after_seconds
        """... but not before this many seconds."""
        self.provider_unhealthy = provider_unhealthy
        """Counts as a failure for the circuit breaker."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider by the names its operator knows: its id and its address."""

    name: str
    base_url: str

    def setting(self, part: str) -> str:
        """Return the environment name of one of this provider's settings."""
        return f"TROUPE_PROVIDERS__{self.name.upper()}__{part}"

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
    parameters: Collection[str] = (),
) -> RequestFailed:
    """Translate an HTTP error response; `body` is its beginning, `now` is in Unix seconds.

    Of the provider's own text only error codes and the names of the request's `parameters` are
    repeated: the rest may hold keys or prompts.
    """
    match status:
        case _ if status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return RequestFailed(
                f"{endpoint} returned status {status}{_codes(body)}; try again later",
                notice=_BUSY_NOTICE
                if status in {HTTPStatus.TOO_MANY_REQUESTS, _OVERLOADED}
                else "",
                retryable=not _QUOTA_USED_UP.search(body),
                retry_after_seconds=_retry_after(headers.get("retry-after"), now),
            )
        case 401 | 403:
            what = f"rejected the API key ({status}); check {endpoint.setting('API_KEY')}"
        case 402:
            what = _NO_CREDIT.format(status)
        case 400 if _QUOTA_USED_UP.search(body):
            what = _NO_CREDIT.format(status)
        case 404:
            what = (
                f"does not know the model {model!r} at {endpoint.base_url} (404); "
                f"check the preset's model and {endpoint.setting('BASE_URL')}"
            )
        case 400 | 413 | 422 if _PROMPT_TOO_LONG.search(body):
            what = f"rejected the prompt as too long for {model!r} ({status}); "
            what += "lower the preset's max_input_tokens"
            return RequestFailed(
                f"{endpoint} {what}", notice=_TOO_LONG_NOTICE, provider_unhealthy=False
            )
        case 400 if _UNREADABLE_IMAGE.search(body):
            what = "cannot read an image of the prompt (400); replace the image in the preset"
        case _ if status < HTTPStatus.BAD_REQUEST:
            what = (
                f"redirects to another address ({status}); correct {endpoint.setting('BASE_URL')}"
            )
        case _:
            named = _codes(body) + _named_parameters(body, parameters)
            what = f"rejected the request ({status}{named}); check the preset's parameters"
    return RequestFailed(
        f"{endpoint} {what}", notice=_CONFIGURATION_NOTICE, provider_unhealthy=False
    )


def translate_error_event(
    endpoint: Endpoint,
    model: str,
    data: bytes,
    now: float,
    statuses: Mapping[str, int] = MappingProxyType({}),
) -> RequestFailed:
    """Translate an error event in a stream that had begun with status 200.

    `statuses` are the HTTP statuses that correspond to a vendor's types of errors.
    """
    status = _status_in(data, statuses)
    if status is None:
        too_long = _PROMPT_TOO_LONG.search(data)
        status = HTTPStatus.BAD_REQUEST if too_long else HTTPStatus.BAD_GATEWAY
    return translate_status(endpoint, model, status, {}, data, now)


def interrupted(endpoint: Endpoint, why: str = "it has no finish_reason") -> RequestFailed:
    """Make the error for a stream that ended before the answer did."""
    return RequestFailed(f"{endpoint} broke off the stream: {why}", retryable=True)


def malformed(endpoint: Endpoint, what: str) -> RequestFailed:
    """Make the error for a response that is not in the expected format."""
    message = f"{endpoint} sent {what}; check {endpoint.setting('BASE_URL')}"
    return RequestFailed(message, retryable=True)


def unreachable(endpoint: Endpoint, why: str) -> RequestFailed:
    """Make the error for a request that got no response."""
    message = f"{endpoint} cannot be reached at {endpoint.base_url}: {why}"
    return RequestFailed(message, retryable=True)


def timed_out(endpoint: Endpoint, what: str, seconds: float, part: str) -> RequestFailed:
    """Make the error for a timeout; `part` is the setting that it comes from.

    It is not retried: the person has waited long enough, and a slow provider needs less work.
    """
    return RequestFailed(f"{endpoint}: {what} within {seconds:g} s ({endpoint.setting(part)})")


class _ErrorDetail(msgspec.Struct):
    code: object = None
    type: object = None
    param: object = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail | str | None = None


def _error_detail(body: bytes) -> _ErrorDetail:
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return _ErrorDetail()
    return error if isinstance(error, _ErrorDetail) else _ErrorDetail()


def _codes(body: bytes) -> str:
    detail = _error_detail(body)
    given = (detail.code, detail.type, detail.param)
    codes = [word for word in given if isinstance(word, str) and _ERROR_CODE.fullmatch(word)]
    return "".join(f", {code}" for code in dict.fromkeys(codes))


def _named_parameters(body: bytes, parameters: Collection[str]) -> str:
    words = set(re.findall(rb"[a-z_]+", body))
    return "".join(f", {name}" for name in parameters if name.encode() in words)


def _status_in(data: bytes, statuses: Mapping[str, int]) -> int | None:
    detail = _error_detail(data)
    if isinstance(detail.type, str) and detail.type in statuses:
        return statuses[detail.type]
    code = detail.code  # OpenRouter and llama.cpp put the HTTP status there
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code)
    is_status = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < 600
    return code if isinstance(code, int) and is_status else None


def _retry_after(value: str | None, now: float) -> float:
    """Return the seconds of a Retry-After header, which may hold a date (RFC 9110, 10.2.3)."""
    if not value:
        return 0
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return 0
