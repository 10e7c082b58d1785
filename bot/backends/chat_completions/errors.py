"""Translate a provider's failures into a message for the operator and a notice for the chat."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import urlsplit

import msgspec
from typing_extensions import override

from bot.backends.chat_completions.retries import wait_asked_for
from bot.errors import TroupeError
from bot.texts.text import Text, translatable
from bot.value_class import value_class

_MIN_TOKENS = 128  # a smaller context is a misread figure
_MAX_DIGITS = 10
_NUMBER = r"(\d[\d,_']*)"
_IS = r"(?:(?:\s?(?:is|of|are|=|:|\(|only|currently|set to)){1,3}\s?)"
_LIMITS = [
    re.compile(pattern.replace("NUMBER", _NUMBER).replace("IS", _IS), re.IGNORECASE)
    for pattern in (
        r"\bn_ctx\W{1,4}NUMBER",
        r"\d \+ \d+ > NUMBER",  # Anthropic: prompt + max_tokens > context
        r"maximum (?:context|model|input|prompt|sequence)?[ _](?:length|size|window)IS?NUMBER",
        r"(?:context|sequence)[ _](?:length|size|window|limit)IS?\s?NUMBER(?! \+)",
        r"tokens allowedISNUMBER|tokens allowed \(?NUMBER",  # Gemini
        r"NUMBER (?:tokens )?(?:maximum|max\b|limit\b|context)",  # Anthropic, Mistral
        r"(?:must be <=|must have less than|cannot exceed|greater than|longer than|up to|at most)"
        r" (?:max_\w+ )?NUMBER",  # TGI, Cohere, TabbyAPI
        r"(?:limit|maximum|max\w*)IS?\s?NUMBER",  # Moonshot, Cerebras, OpenAI's tokens a minute
        r"\[\d+, ?NUMBER\]",  # DashScope
    )
]
_PROMPTS = [
    re.compile(pattern.replace("NUMBER", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"n_prompt_tokens\W{1,4}NUMBER",
        r"NUMBER (?:tokens )?(?:in|of|from) (?:the|your) (?:messages|prompt|input|text)",
        r"NUMBER (?:of )?(?:text )?input",
        r"(?:resulted in|requested(?: about)?(?: a total of)?|contains|input|request|received"
        r"|given:|length|long:|length is|count|has)\W{1,2}NUMBER",
        r"NUMBER (?:\+ \d+ |tokens )?>",
    )
]
_TRANSIENT = frozenset({408, 409, 429})
_OVERLOADED = 529  # of Anthropic
_ERROR_CODE = re.compile(r"[A-Za-z][\w.-]{0,63}")
_PROMPT_TOO_LONG = re.compile(
    rb"context_length|context length|context size|context window|exceed_context|maximum context"
    rb"|prompt is too long|exceed context|request_too_large|contextwindowexceeded|too many tokens"
    rb"|maximum number of tokens allowed|input is too long|prompt too long|reduce the length"
    rb"|request too large for|tokens \+ .?max_new_tokens.? must be|maximum model length"
    rb"|model token limit|range of input length|must have less than \d+ tokens|max_seq_len"
    rb"|maximum prompt length|max_tokens must be at least 1, got -"
    rb"|\"code\": ?\"?1261\b",  # Zhipu, whose words are Chinese
    re.IGNORECASE,
)
# From the chat templates of Gemma 2, Llama 2, Mistral 0.1 and 0.2, and similar ones.
_SYSTEM_REJECTED = re.compile(
    rb"system (role|message|prompt)s? (is |are )?not (supported|allowed)|roles must alternate"
    rb"|only [^\n]{0,40}roles? (are|is) supported|(unsupported|invalid|unknown|unexpected) role",
    re.IGNORECASE,
)
_ALWAYS_TOO_LARGE = re.compile(rb"request too large for", re.IGNORECASE)
_LIMIT_TOO_HIGH = re.compile(
    rb"max_(completion_|new_)?tokens.{0,60}is too large(: (?P<tokens>\d+))?", re.IGNORECASE
)
_NO_MEMORY = re.compile(rb"requires more (system|gpu|video)? ?memory", re.IGNORECASE)
_QUOTA_USED_UP = re.compile(
    rb"insufficient[_ ](quota|balance|credits?|funds)|credit balance is too low|billing_hard_limit"
    rb"|billing_not_active|out of credits|account (is )?overdue|arrearage|payment required"
    rb"|exceeded your (current|monthly) (usage|spend|billing)|budget has been exceeded"
    # Gemini says the same of a limit for each minute.
    rb"|openaiexception.{0,20}exceeded your current quota"
    rb"|specified api usage limits|have any credits|used all available credits"
    rb"|budget_exceeded|exceededbudget|over budget|exceeded_current_quota|balance is insufficient"
    rb"|key limit exceeded|\"code\": ?\"?1113\b",
    re.IGNORECASE,
)
_DAY_USED_UP = re.compile(
    rb"models-per-day|per ?day(per|\b)|\((rpd|tpd)\)|daily (quota|limit|free)", re.IGNORECASE
)
_MODERATED = re.compile(
    rb"content_policy|content policy|content[_ ]filter|content management policy|responsibleai"
    rb"|moderation|data_?inspection_?failed|inappropriate content|flagged|safety_check"
    rb"|contentpolicyviolation|sensitive_words|content exists risk|guardrail|\"code\": ?\"?1301\b",
    re.IGNORECASE,
)
_UNKNOWN_MODEL = re.compile(
    rb"model_not_found|model[_ ]not[_ ]exist|model[^\n]{0,80}(does not exist|not found)"
    rb"|invalid_model|invalid model|not a valid model|unknown model|no such model"
    rb"|unsupported model|unable to access model|\"code\": ?\"?1211\b",
    re.IGNORECASE,
)
_MODEL_NOT_ALLOWED = re.compile(
    rb"key_model_access_denied|not allowed to access model", re.IGNORECASE
)
_WRONG_KEY = re.compile(
    rb"invalid_api_key|api key not valid|api_key_invalid|incorrect api key|invalid api key"
    rb"|authentication_error|authenticationerror|expired[_ ]key|login fail"
    rb"|no_db_connection",  # LiteLLM's proxy without a database, for any key but its own
    re.IGNORECASE,
)
# llama-server, text-generation-inference, Hugging Face, Xinference
_LOADING = re.compile(rb"loading model|model[^\n]{0,80} loading|loading the model", re.IGNORECASE)
_UNREADABLE_IMAGE = re.compile(
    rb"failed to load image|image_parse_error|invalid_image|invalid_base64|not process image",
    re.IGNORECASE,
)

_SECONDS_WORTH_TELLING = 5.0
_BUSY_NOTICE = translatable("The model is busy right now. Please try again in a moment.")
_LOADING_NOTICE = translatable(
    "The model is still being loaded. Please try again in a few minutes."
)
_CONFIGURATION_NOTICE = translatable(
    "The model is not configured correctly; the bot's operator has to fix it."
)
_TOO_LONG_NOTICE = translatable(
    "This conversation has become longer than the model can read. Start a new one with /new."
)
_NO_CREDIT_NOTICE = translatable(
    "The bot's account with the model's provider has no credit left; the bot's operator has to top"
    " it up."
)
_DAY_USED_UP_NOTICE = translatable(
    "The bot has used up what the model's provider allows it in a day. Please try again later."
)
_MODERATED_NOTICE = translatable(
    "The model's provider refuses to answer this because of its content rules. Please try other"
    " words, or start anew with /new."
)
_UNKNOWN_MODEL_NOTICE = translatable(
    "This preset's model does not exist at its provider. An admin can choose another preset with"
    " /preset; the bot's operator has to correct this one."
)
_WRONG_KEY_NOTICE = translatable(
    "The model's provider does not accept the bot's key; the bot's operator has to renew it."
)


@value_class
class TooLong:
    """The length of a rejected prompt, and the limit; None where the server does not say."""

    context_tokens: int | None
    prompt_tokens: int | None


def read_length_limits(body: bytes) -> TooLong:
    """Read the figures of an error."""
    text = body.decode(errors="replace")
    limit = _first(_LIMITS, text)
    return TooLong(limit, _first(_PROMPTS, text, limit))


def _first(
    patterns: Sequence[re.Pattern[str]], text: str, other_than: int | None = None
) -> int | None:
    for pattern in patterns:
        for match in pattern.finditer(text):
            digits = re.sub(r"\D", "", next(each for each in match.groups() if each))
            if len(digits) < _MAX_DIGITS and _MIN_TOKENS <= int(digits) != other_than:
                return int(digits)
    return None


@value_class
class _LastingError:
    """A kind of error that a retry would not fix."""

    is_meant: Callable[[int, bytes], bool]
    """Recognizes it by the status and the body."""
    what: str
    """The message for the operator: what the provider did, and the remedy."""
    notice: str
    """The message for the chat."""
    is_certain: bool = False
    """It lasts even with a status that usually means a temporary error."""
    rejects_system: bool = False
    """Whether the same request without a system message may be accepted."""
    is_of_account: bool = False
    """Whether every prompt fails until the operator has acted."""


def _is_key_rejected(status: int, body: bytes) -> bool:
    is_rejected = status == HTTPStatus.UNAUTHORIZED or _WRONG_KEY.search(body) is not None
    return is_rejected and not _MODEL_NOT_ALLOWED.search(body)


def _names_unknown_model(body: bytes) -> bool:
    return bool(_UNKNOWN_MODEL.search(body) or _MODEL_NOT_ALLOWED.search(body))


def _is_output_limit_too_high(body: bytes) -> bool:
    """Return whether an error of vLLM, which has one for both, is about the answer limit."""
    match = _LIMIT_TOO_HIGH.search(body)
    if match is None or match["tokens"] is None:
        return match is not None
    context = read_length_limits(body).context_tokens
    return context is None or int(match["tokens"]) >= context


def _by_words(pattern: re.Pattern[bytes]) -> Callable[[int, bytes], bool]:
    return lambda _, body: pattern.search(body) is not None


_LASTING_ERRORS = (
    _LastingError(
        lambda status, body: (
            status == HTTPStatus.PAYMENT_REQUIRED or _QUOTA_USED_UP.search(body) is not None
        ),
        "has no credit left ({status}{codes}); top up its account",
        _NO_CREDIT_NOTICE,
        is_certain=True,
        is_of_account=True,
    ),
    _LastingError(
        _by_words(_DAY_USED_UP),
        "has used up its allowance of the day ({status}{codes}); wait, or raise it there",
        _DAY_USED_UP_NOTICE,
        is_certain=True,
        is_of_account=True,
    ),
    _LastingError(
        _by_words(_SYSTEM_REJECTED),
        "rejected the roles of the messages for {model!r} ({status}{codes}); its chat template"
        " takes other ones",
        _CONFIGURATION_NOTICE,
        rejects_system=True,
    ),
    _LastingError(
        _by_words(_NO_MEMORY),
        "has too little memory for the model {model!r} ({status}); choose a smaller one",
        _CONFIGURATION_NOTICE,
    ),
    _LastingError(
        lambda _, body: _is_output_limit_too_high(body),
        "rejected the limit of the answer as too high for {model!r} ({status}); lower the preset's"
        " max_output_tokens",
        _CONFIGURATION_NOTICE,
    ),
    _LastingError(
        lambda status, body: (
            status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            or _PROMPT_TOO_LONG.search(body) is not None
        ),
        "rejected the prompt as too long for {model!r} ({status}); lower the preset's"
        " max_input_tokens",
        _TOO_LONG_NOTICE,
    ),
    _LastingError(
        _by_words(_MODERATED),
        "refused the prompt by its content rules ({status}{codes})",
        _MODERATED_NOTICE,
    ),
    _LastingError(
        _is_key_rejected,
        "rejected the API key ({status}); check {key}",
        _WRONG_KEY_NOTICE,
        is_of_account=True,
    ),
    _LastingError(
        lambda status, body: status == HTTPStatus.NOT_FOUND or _names_unknown_model(body),
        "does not know the model {model!r} at {address} ({status}); check the preset's model and"
        " {base_url}{path_hint}",
        _UNKNOWN_MODEL_NOTICE,
        is_of_account=True,
    ),
    _LastingError(
        lambda status, _: status == HTTPStatus.FORBIDDEN,
        "rejected the API key ({status}); check {key}",
        _WRONG_KEY_NOTICE,
    ),
)


@dataclass(eq=False, repr=False)
class RequestFailed(TroupeError):
    """One attempt failed; the request runner retries it or raises a `BackendError` from it."""

    message: str
    _: KW_ONLY
    notice: str = ""
    """The message for the chat; empty: `BackendError`'s default."""
    retryable: bool = False
    """The same request may succeed a little later."""
    retry_after_seconds: float = 0
    """... but not before this many seconds."""
    provider_unhealthy: bool = True
    """Counts as a failure for the circuit breaker."""
    is_lasting: bool = False
    """Further prompts for the model would fail as well."""
    is_away: bool = False
    """Nothing answers there; the circuit breaker opens sooner."""
    is_loading: bool = False
    """The server is reading its model; it is asked again until the first token is due."""
    rejects_system: bool = False
    """The model's chat template may have no system message."""
    too_long: TooLong | None = None
    """The prompt is longer than the model can read."""

    def __post_init__(self) -> None:
        super().__init__(self.message)


@value_class
class Endpoint:
    """A provider by the names that its operator knows: its id and its address."""

    name: str
    base_url: str

    def setting(self, part: str) -> str:
        """Return the environment name of one of this provider's settings."""
        return f"TROUPE_PROVIDERS__{self.name.upper()}__{part}"

    @property
    def path_hint(self) -> str:
        """Return a hint for an address that has no path."""
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
    parameters: Collection[str] = (),
) -> RequestFailed:
    """Translate an HTTP error response; `body` is its beginning, `now` is in Unix seconds.

    Of the provider's own text only error codes and the names of the request's `parameters` are
    repeated: the rest may hold keys or prompts.
    """
    if status >= HTTPStatus.BAD_REQUEST:
        refusal = _translate_refusal(endpoint, model, status, body)
        if refusal is not None:
            return refusal
    if status == HTTPStatus.SERVICE_UNAVAILABLE and _LOADING.search(body):
        return RequestFailed(
            f"{endpoint} is still loading the model {model!r} ({status}); try again later",
            notice=_LOADING_NOTICE,
            retryable=True,
            provider_unhealthy=False,
            is_loading=True,
        )
    if status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        is_busy = status in {HTTPStatus.TOO_MANY_REQUESTS, _OVERLOADED}
        wait = wait_asked_for(headers, body, now)
        asks = f"it asks to wait {wait:g} s; " if wait else ""
        return RequestFailed(
            f"{endpoint} returned status {status}{_codes(body)}; {asks}try again later",
            notice=_busy_notice(wait) if is_busy or wait else "",
            retryable=True,
            retry_after_seconds=wait,
            is_away=status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        )
    if status < HTTPStatus.BAD_REQUEST:
        what = f"redirects to another address ({status}); correct {endpoint.setting('BASE_URL')}"
    elif status == HTTPStatus.BAD_REQUEST and _UNREADABLE_IMAGE.search(body):
        what = "cannot read an image of the prompt (400); replace the image in the preset"
    else:
        named = _codes(body) + _named_parameters(body, parameters)
        what = f"rejected the request ({status}{named}); check the preset's parameters"
    return RequestFailed(
        f"{endpoint} {what}", notice=_CONFIGURATION_NOTICE, provider_unhealthy=False
    )


def _busy_notice(wait_seconds: float) -> Text:
    """Say that the model is busy, and for how long if that is worth telling."""
    if wait_seconds < _SECONDS_WORTH_TELLING:
        return _BUSY_NOTICE
    return translatable(
        "The model is busy right now. Please try again in {time}.", time=rough_time(wait_seconds)
    )


def rough_time(seconds: float) -> str:
    """Write a time in its largest fitting unit, rounded up: 45 s, 2 min, 3 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"


def _translate_refusal(
    endpoint: Endpoint, model: str, status: int, body: bytes
) -> RequestFailed | None:
    """Translate an error that a retry would not fix; None for any other.

    Services agree neither on the status nor on the words, so both are looked at
    (docs/sources.md#openai).
    """
    if status > HTTPStatus.INTERNAL_SERVER_ERROR and not _NO_MEMORY.search(body):
        return None  # llama.cpp and proxies say with 500 what others say with 400
    for known in _LASTING_ERRORS:
        if known.is_meant(status, body):
            is_certain = known.is_certain or _ALWAYS_TOO_LARGE.search(body)
            if status in _TRANSIENT and not is_certain:
                return None
            what = known.what.format(
                status=status,
                codes=_codes(body),
                model=model,
                address=endpoint.base_url,
                key=endpoint.setting("API_KEY"),
                base_url=endpoint.setting("BASE_URL"),
                path_hint=endpoint.path_hint,
            )
            return RequestFailed(
                f"{endpoint} {what}",
                notice=known.notice,
                provider_unhealthy=False,
                is_lasting=known.is_of_account,
                rejects_system=known.rejects_system,
                too_long=read_length_limits(body) if known.notice is _TOO_LONG_NOTICE else None,
            )
    return None


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
        refused = (_PROMPT_TOO_LONG, _QUOTA_USED_UP, _MODERATED, _UNKNOWN_MODEL, _WRONG_KEY)
        is_refused = any(pattern.search(data) for pattern in refused)
        status = HTTPStatus.BAD_REQUEST if is_refused else HTTPStatus.BAD_GATEWAY
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
    return RequestFailed(message, retryable=True, is_away=True)


def timed_out(
    endpoint: Endpoint, what: str, seconds: float, part: str, *, is_silent: bool = False
) -> RequestFailed:
    """Make the error for a timeout of the setting `part`; `is_silent`: nothing came at all.

    It is not retried: the person has waited long enough, and a slow provider needs less work.
    """
    message = f"{endpoint}: {what} within {seconds:g} s ({endpoint.setting(part)})"
    return RequestFailed(message, is_lasting=is_silent, is_away=is_silent)


def timed_out_while_suspended(endpoint: Endpoint) -> RequestFailed:
    """Make the error for a request that timed out while this process was suspended."""
    message = f"{endpoint}: the request timed out because this process stood still"
    return RequestFailed(message, retryable=True, provider_unhealthy=False)


def _error_detail(body: bytes) -> Mapping[str, object]:
    """Read an error: in an object of its own, beside its message (vLLM), or in a list (Gemini)."""
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    first = given[0] if isinstance(given, list) and given else given
    if not isinstance(first, dict):
        return {}
    error = first.get("error")
    return error if isinstance(error, dict) else first


def _codes(body: bytes) -> str:
    detail = _error_detail(body)
    given = (detail.get(name) for name in ("code", "type", "param"))
    codes = [word for word in given if isinstance(word, str) and _ERROR_CODE.fullmatch(word)]
    return "".join(f", {code}" for code in dict.fromkeys(codes))


def _named_parameters(body: bytes, parameters: Collection[str]) -> str:
    words = set(re.findall(rb"[a-z_]+", body))
    return "".join(f", {name}" for name in parameters if name.encode() in words)


def _status_in(data: bytes, statuses: Mapping[str, int]) -> int | None:
    detail = _error_detail(data)
    kind, code = detail.get("type"), detail.get("code")
    if isinstance(kind, str) and kind in statuses:
        return statuses[kind]
    # OpenRouter and llama.cpp put the HTTP status there
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code)
    is_status = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < 600
    return code if isinstance(code, int) and is_status else None
