"""What goes wrong with a provider, in words for the operator and in words for the chat."""

import email.utils
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from typing_extensions import override

_TRANSIENT = frozenset({408, 409, 429})
_CODE = re.compile(r"[A-Za-z][\w.-]{0,63}")
_TOO_LONG = re.compile(
    rb"context_length|context length|context size|context window|exceed_context|maximum context",
    re.IGNORECASE,
)
_OUT_OF_MONEY = re.compile(rb"insufficient_quota|insufficient balance", re.IGNORECASE)

_UNREADABLE_IMAGE = re.compile(
    rb"failed to load image|image_parse_error|invalid_image|invalid_base64", re.IGNORECASE
)

_BUSY = "The model is busy right now. Please try again in a moment."
_MISCONFIGURED = "The model is not set up correctly; an operator has to mend it."
_TOO_LONG_NOTICE = (
    "This conversation has become longer than the model can read. Start a fresh one with /new."
)


class Fault(Exception):
    """One attempt failed. Whether something was shown already decides what becomes of it."""

    def __init__(
        self,
        what: str,
        *,
        notice: str = "",
        again: bool = False,
        pause_seconds: float = 0,
        ill: bool = True,
    ) -> None:
        super().__init__(what)
        self.notice = notice  # for the chat; empty: the usual one
        self.again = again  # the same request may work a little later
        self.pause_seconds = pause_seconds  # ... but not before
        self.ill = ill  # counts against the provider's health


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider as its operator knows it."""

    name: str
    base_url: str

    def setting(self, part: str) -> str:
        return f"TROUPE_PROVIDERS__{self.name.upper()}__{part}"

    @override
    def __str__(self) -> str:
        return f"provider {self.name!r}"


def from_status(
    endpoint: Endpoint, model: str, status: int, headers: Mapping[str, str], body: bytes, now: float
) -> Fault:
    """Translate an HTTP answer that is an error; `body` is its beginning, `now` Unix seconds.

    The provider's own words never go further than its error codes: they may hold keys or prompts.
    """
    match status:
        case _ if status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Fault(
                f"{endpoint} answers {status}{_code(body)}; try later",
                notice=_BUSY if status == HTTPStatus.TOO_MANY_REQUESTS else "",
                again=not _OUT_OF_MONEY.search(body),
                pause_seconds=_retry_after(headers.get("retry-after"), now),
            )
        case 401 | 403:
            what = f"refuses the key ({status}); check {endpoint.setting('API_KEY')}"
        case 402:
            what = "wants to be paid (402): its balance is used up"
        case 404:
            what = (
                f"knows no model {model!r} at {endpoint.base_url} (404); "
                f"check the preset's model and {endpoint.setting('BASE_URL')}"
            )
        case 400 | 413 | 422 if _TOO_LONG.search(body):
            what = f"finds the prompt too long for {model!r} ({status}); lower max_input_tokens"
            return Fault(f"{endpoint} {what}", notice=_TOO_LONG_NOTICE, ill=False)
        case 400 if _UNREADABLE_IMAGE.search(body):
            what = "cannot read an image of the prompt (400); is it whole? Mend it in the preset"
        case _ if status < HTTPStatus.BAD_REQUEST:
            what = f"sends us elsewhere ({status}); correct {endpoint.setting('BASE_URL')}"
        case _:
            what = f"refuses the request ({status}{_code(body)}); check the preset's parameters"
    return Fault(f"{endpoint} {what}", notice=_MISCONFIGURED, ill=False)


def from_event(endpoint: Endpoint, model: str, data: bytes, now: float) -> Fault:
    """Translate an error that came inside a stream that had begun well (status 200)."""
    status = _status_of(data)
    if status is None:
        again = not _TOO_LONG.search(data)
        status = HTTPStatus.BAD_GATEWAY if again else HTTPStatus.BAD_REQUEST
    return from_status(endpoint, model, status, {}, data, now)


def cut(endpoint: Endpoint, why: str = "the stream has no finish_reason") -> Fault:
    return Fault(f"{endpoint} stopped in mid-answer: {why}", again=True)


def garbled(endpoint: Endpoint, what: str) -> Fault:
    what = f"{endpoint} sent {what}; is {endpoint.setting('BASE_URL')} right?"
    return Fault(what, again=True)


def unreachable(endpoint: Endpoint, why: str) -> Fault:
    return Fault(f"{endpoint} cannot be reached at {endpoint.base_url}: {why}", again=True)


def too_slow(endpoint: Endpoint, what: str, seconds: float, part: str) -> Fault:
    # No second try: the person has waited long enough, and a slow provider needs less work.
    return Fault(f"{endpoint}: {what} within {seconds:g} s ({endpoint.setting(part)})")


class _Detail(msgspec.Struct):
    code: object = None
    type: object = None
    param: object = None


class _Failure(msgspec.Struct):
    error: _Detail | str | None = None


def _failure(body: bytes) -> _Detail:
    try:
        error = msgspec.json.decode(body, type=_Failure).error
    except msgspec.DecodeError:
        return _Detail()
    return error if isinstance(error, _Detail) else _Detail()


def _code(body: bytes) -> str:
    failure = _failure(body)
    given = (failure.code, failure.type, failure.param)
    codes = [word for word in given if isinstance(word, str) and _CODE.fullmatch(word)]
    return "".join(f", {code}" for code in dict.fromkeys(codes))


def _status_of(data: bytes) -> int | None:
    code = _failure(data).code  # OpenRouter and llama.cpp put the HTTP status there
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code)
    is_status = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < 600
    return code if isinstance(code, int) and is_status else None


def _retry_after(value: str | None, now: float) -> float:
    """Seconds from a Retry-After header, which may also hold a date (RFC 9110, 10.2.3)."""
    if not value:
        return 0
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return 0
