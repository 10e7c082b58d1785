"""Send requests to Discord's REST API, respect its rate limits, and translate its errors."""

import asyncio
import math
import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import structlog
from aiohttp import FormData

from bot import __version__, errors
from bot.chat.outgoing import Attachment
from bot.platforms.discord.settings import TOKEN_REJECTED_TEXT, DiscordSettings
from bot.platforms.tokens import BotToken
from bot.runtime.http_client import ConnectionFailed, HttpClient, HttpResponse
from bot.texts.text import translatable
from bot.value_class import value_class

_MAX_BUCKETS = 1000
_MAX_KEPT_SENT_TIMES = 100
_LIMIT_HEADER, _REMAINING_HEADER = "x-ratelimit-limit", "x-ratelimit-remaining"
_RESET_AFTER_HEADER, _BUCKET_HEADER = "x-ratelimit-reset-after", "x-ratelimit-bucket"


class RateLimitBucket:
    """A rate limit: the number of requests that Discord accepts in a time window.

    Because of latency, it is unknown when exactly a window starts. So the limit is kept in every
    period of the window's length.
    """

    __slots__ = ("_limit", "_remaining_requests", "_resets_at", "_sent_times", "_window_seconds")

    def __init__(self) -> None:
        self._limit = self._remaining_requests = math.inf
        self._resets_at = -math.inf
        self._window_seconds = 0.0  # the length of the longest window so far
        self._sent_times: deque[float] = deque(maxlen=_MAX_KEPT_SENT_TIMES)  # oldest first

    def seconds_until_free(self, now: float) -> float:
        """Return the seconds until a request is allowed, or 0 if one is allowed now."""
        seconds = 0.0 if self._remaining_requests > 0 else self._resets_at - now
        if len(self._sent_times) >= self._limit:
            seconds = max(seconds, self._sent_times[-int(self._limit)] + self._window_seconds - now)
        return max(0.0, seconds)

    def count_request(self, now: float) -> None:
        """Count a request that is sent now. It starts a new window if the last one is over."""
        if now >= self._resets_at and self._window_seconds:
            self._remaining_requests, self._resets_at = self._limit, now + self._window_seconds
        self._remaining_requests -= 1
        self._sent_times.append(now)

    def apply_limits(self, limit: float, remaining: float, reset_after: float, now: float) -> None:
        """Apply a response's headers, which may not count requests that are still in progress."""
        if now < self._resets_at:  # the same window
            remaining = min(self._remaining_requests, remaining)
        self._remaining_requests = remaining
        self._limit = limit
        self._resets_at = max(self._resets_at, now + reset_after)
        self._window_seconds = max(self._window_seconds, reset_after)

    def block_until(self, end_time: float) -> None:
        """Block this bucket's requests until a time."""
        self._remaining_requests, self._resets_at = 0, max(self._resets_at, end_time)

    def has_expired(self, now: float) -> bool:
        """Return whether the bucket's last window has ended."""
        return now >= self._resets_at


class BucketLimits:
    """All rate limits (https://discord.com/developers/docs/topics/rate-limits).

    Discord assigns endpoints to buckets by name; each bucket has a limit for each resource, which
    is a channel, guild or webhook.
    """

    def __init__(self) -> None:
        self._bucket_names: dict[str, str] = {}  # Discord's bucket name, by endpoint
        self._buckets: dict[tuple[str, str], RateLimitBucket] = {}
        self._blocked_until = -math.inf

    def __len__(self) -> int:
        return len(self._buckets)

    def get_bucket(self, endpoint_key: str, resource: str, now: float) -> RateLimitBucket:
        """Return the bucket of an endpoint for a resource (a channel, guild or webhook)."""
        key = (self._bucket_names.get(endpoint_key, endpoint_key), resource)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                bucket_items = self._buckets.items()
                self._buckets = {key: one for key, one in bucket_items if not one.has_expired(now)}
            bucket = self._buckets[key] = RateLimitBucket()
        return bucket

    def seconds_until_free(self, bucket: RateLimitBucket, now: float) -> float:
        """Return the seconds until both the bucket and the global limit allow a request."""
        return max(bucket.seconds_until_free(now), self._blocked_until - now, 0.0)

    def blocked_scope(self, bucket: RateLimitBucket, now: float) -> errors.RefusedScope:
        """Return "bot" if the global limit requires the longer wait, otherwise "route"."""
        return "bot" if self._blocked_until - now >= bucket.seconds_until_free(now) else "route"

    def block_all_until(self, end_time: float) -> None:
        """Block the requests of all buckets until a time."""
        self._blocked_until = max(self._blocked_until, end_time)

    def apply_headers(
        self,
        bucket: RateLimitBucket,
        endpoint_key: str,
        resource: str,
        headers: Mapping[str, str],
        now: float,
    ) -> None:
        """Apply the rate limit headers of a response, if it has them."""
        name = headers.get(_BUCKET_HEADER)
        if name is not None and self._bucket_names.get(endpoint_key) != name:
            self._assign_bucket_name(endpoint_key, name)
            bucket = self._buckets.setdefault((name, resource), bucket)
        with suppress(KeyError, ValueError):
            limit_header_names = (_LIMIT_HEADER, _REMAINING_HEADER, _RESET_AFTER_HEADER)
            limit, remaining, reset_after = (float(headers[one]) for one in limit_header_names)
            bucket.apply_limits(limit, remaining, reset_after, now)

    def _assign_bucket_name(self, endpoint_key: str, name: str) -> None:
        """Assign an endpoint to a bucket name, and keep the endpoint's request counts."""
        old_name = self._bucket_names.get(endpoint_key, endpoint_key)
        self._bucket_names[endpoint_key] = name
        for (bucket_name, resource), bucket in list(self._buckets.items()):
            if bucket_name == old_name:
                self._buckets.setdefault((name, resource), bucket)


_DEFAULT_RETRY_PAUSE_SECONDS = 5.0
_CLOSED_THREAD_CODES = frozenset({50083, 160005})  # archived, locked
ResultT = TypeVar("ResultT")
_REQUEST_TIMEOUT_SECONDS = 10.0
_USER_AGENT = f"DiscordBot (https://github.com/troupe-bot/troupe, {__version__})"
_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]+")
_CONNECT_TIMEOUT_SECONDS = 5.0
_MAX_RESPONSE_BYTES = 64 * 2**20
# The longest wait for a rate limit, a little more than Discord's usual window of 5 s. A longer
# wait raises RateLimited.
_MAX_RATE_LIMIT_WAIT_SECONDS = 6.0
_MAX_ERROR_TEXT_CHARS = 500
_JSON_CONTENT_TYPE = "application/json"
_log = structlog.get_logger(__name__)


class WebhookNotFound(errors.Refused):
    """The webhook was deleted, or an interaction's token has expired."""


class ChannelNotFound(errors.Refused):
    """The channel or thread does not exist."""


class ThreadExists(errors.Refused):
    """The message already has a thread."""


class AlreadyAcknowledged(errors.Refused):
    """The interaction already has a response."""


_ERRORS_BY_CODE: Mapping[int, type[errors.Refused]] = {
    10003: ChannelNotFound,
    10008: errors.MessageNotFound,
    10015: WebhookNotFound,
    40060: AlreadyAcknowledged,
    50027: WebhookNotFound,  # Discord does not know the webhook's token
    160004: ThreadExists,
    200000: errors.WordsRefused,  # AutoMod blocked a message
    200001: errors.WordsRefused,  # AutoMod blocked a title
}


def to_platform_error(
    status: int, code: int, text: str, retry_after: str | None = None
) -> errors.PlatformError:
    """Return the error for a response; `code` is Discord's error code, or 0 if there is none."""
    error_text = f"Discord answered {status} ({code}): {text}"
    if code in _ERRORS_BY_CODE:
        return _ERRORS_BY_CODE[code](error_text)
    match status:
        case 400 if code not in _CLOSED_THREAD_CODES:
            return errors.ContentRefused(error_text)
        case 401:
            return errors.TokenRejected(TOKEN_REJECTED_TEXT)
        case 429:  # from a proxy in front of Discord
            return errors.RateLimited(_parse_retry_after(retry_after), "bot")
        case _ if status >= 500:
            return errors.OutcomeUnknown(error_text)
        case _:
            return errors.Refused(error_text)


def _parse_retry_after(retry_after: str | None) -> float:
    try:
        return float(retry_after or "")
    except ValueError:  # a date, or missing
        return _DEFAULT_RETRY_PAUSE_SECONDS


@value_class
class RestEndpoint:
    """An HTTP method and path, whose first `bucket_id_count` placeholders choose a rate limit."""

    method: str
    path: str
    bucket_id_count: int = 1
    waits_for_limit: bool = True
    """Whether `call` waits for a short rate limit and retries, instead of raising `RateLimited`."""
    is_interaction_callback: bool = False


class RestClient:
    """Sends a bot's requests to the REST API, and respects its rate limits."""

    def __init__(self, token: BotToken[DiscordSettings]) -> None:
        self._token = token
        self._http = HttpClient(
            token.settings.api_base.rstrip("/"),
            {"User-Agent": _USER_AGENT},
            connect_seconds=_CONNECT_TIMEOUT_SECONDS,
            uses_proxy=False,
        )
        self._limits = BucketLimits()
        self._user: BotUser | None = None

    async def call(
        self,
        endpoint: RestEndpoint,
        *ids: str,
        body: object = None,
        file: Attachment | None = None,
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        """Wait for short rate limits, send a request, and return the body of its response."""
        if file is not None and isinstance(body, dict):
            # Without this list, a repeated edit would attach the file a second time.
            body = {**body, "attachments": [{"id": 0, "filename": file.name}]}
        path = endpoint.path.format(*ids)
        if query:
            path += f"?{urlencode(query)}"
        key = f"{endpoint.method} {endpoint.path}"
        resource = ":".join(ids[: endpoint.bucket_id_count])
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_SECONDS
        request = _RestRequest(endpoint, path, body, file, key, resource, deadline)
        token = self._read_newest_token()
        try:
            return await self._send_with_retries(request, token)
        except errors.TokenRejected:
            newer_token = self._read_newest_token(check_now=True)
            if newer_token == token:
                raise
            return await self._send_with_retries(request, newer_token)

    async def read_bot_user(self) -> "BotUser":
        """Return the user account of the bot; raises `PlatformError`."""
        if self._user is None:
            self._user = decode_response(await self.call(_GET_BOT_USER), BotUser)
        return self._user

    async def close(self) -> None:
        await self._http.close()

    def _read_newest_token(self, *, check_now: bool = False) -> str:
        token = self._token.read(check_now=check_now)
        if not token:
            raise errors.PlatformFatal("Discord needs a bot token; set TROUPE_DISCORD__TOKEN")
        if not _TOKEN_PATTERN.fullmatch(token):
            raise errors.TokenRejected(TOKEN_REJECTED_TEXT)
        return token

    async def _send_with_retries(self, request: "_RestRequest", token: str) -> bytes:
        while True:
            bucket = await self._wait_for_rate_limit(request)
            response, content = await self._send_once(request, token)
            now = asyncio.get_running_loop().time()
            self._limits.apply_headers(bucket, request.key, request.resource, response.headers, now)
            if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                return content
            refusal = _read_refusal(content)
            is_rate_limited = response.status == HTTPStatus.TOO_MANY_REQUESTS
            is_from_proxy = "via" not in response.headers  # a proxy in front of Discord
            if not is_rate_limited or refusal.retry_after is None or is_from_proxy:
                code = 0 if is_rate_limited else refusal.code
                retry_after = response.headers.get("retry-after")
                raise to_platform_error(response.status, code, refusal.text, retry_after)
            retry_seconds, is_global = refusal.retry_after, refusal.is_global
            _log.warning("discord_rate_limit", seconds=retry_seconds, everywhere=is_global)
            if is_global:
                self._limits.block_all_until(now + retry_seconds)
            else:
                bucket.block_until(now + retry_seconds)
            if not request.endpoint.waits_for_limit:
                raise errors.RateLimited(retry_seconds, "bot" if is_global else "route")

    async def _wait_for_rate_limit(self, request: "_RestRequest") -> RateLimitBucket:
        """Wait until the rate limits allow a request; raises `RateLimited` for a long wait."""
        while True:
            now = asyncio.get_running_loop().time()
            bucket = self._limits.get_bucket(request.key, request.resource, now)
            if request.endpoint.is_interaction_callback:
                seconds = bucket.seconds_until_free(now)
            else:
                seconds = self._limits.seconds_until_free(bucket, now)
            # The deadline may also have passed while this process was suspended.
            if seconds > _MAX_RATE_LIMIT_WAIT_SECONDS or now + seconds > request.deadline:
                raise errors.RateLimited(seconds, self._limits.blocked_scope(bucket, now))
            if seconds <= 0:
                bucket.count_request(now)
                return bucket
            await asyncio.sleep(seconds)

    async def _send_once(self, request: "_RestRequest", token: str) -> tuple[HttpResponse, bytes]:
        content_type, content = _encode_body(request.endpoint.method, request.body, request.file)
        try:
            async with await self._http.request(
                request.endpoint.method,
                request.path,
                content,
                request.deadline,
                content_type=content_type,
                headers={"Authorization": f"Bot {token}"},
            ) as response:
                return response, await response.read_all(request.deadline, _MAX_RESPONSE_BYTES)
        except ConnectionFailed as error:
            if error.is_request_sent:
                raise errors.OutcomeUnknown(f"Discord's response was lost: {error}") from None
            raise errors.Unreachable(
                translatable("{name} cannot be reached: {reason}", name="Discord", reason=error)
            ) from None
        except TimeoutError:
            values = {"name": "Discord", "seconds": f"{_REQUEST_TIMEOUT_SECONDS:g}"}
            text = translatable("{name} did not answer within {seconds} s", **values)
            raise errors.OutcomeUnknown(text) from None


class ObjectWithId(msgspec.Struct):
    """A JSON object from Discord; only its id is decoded."""

    id: str


class BotUser(msgspec.Struct):
    id: str
    username: str
    discriminator: str = "0"

    @property
    def full_name(self) -> str:
        has_discriminator = self.discriminator.strip("0") != ""
        return f"{self.username}#{self.discriminator}" if has_discriminator else self.username


_GET_BOT_USER = RestEndpoint("GET", "/users/@me", bucket_id_count=0)


def decode_response(response: bytes, result_type: type[ResultT]) -> ResultT:
    """Decode the JSON of a response to a type; raises `OutcomeUnknown` if it does not match."""
    try:
        return msgspec.json.decode(response, type=result_type)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.OutcomeUnknown(
            "Discord's response is not valid JSON; perhaps a proxy sent an error page"
        ) from None


@value_class
class _RestRequest:
    endpoint: RestEndpoint
    path: str
    body: object
    file: Attachment | None
    key: str
    resource: str
    deadline: float


class _Refusal(msgspec.Struct):
    code: int = 0
    message: str = ""
    errors: Any = None
    retry_after: float | None = None
    is_global: bool = msgspec.field(default=False, name="global")

    @property
    def text(self) -> str:
        return f"{self.message} {self.errors or ''}".strip()[:_MAX_ERROR_TEXT_CHARS]


def _read_refusal(content: bytes) -> _Refusal:
    try:
        return msgspec.json.decode(content, type=_Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):  # such as a proxy's error page
        page = content[:_MAX_ERROR_TEXT_CHARS].decode(errors="replace")
        return _Refusal(message=f"not JSON; is TROUPE_DISCORD__API_BASE correct? {page}")


def _encode_body(
    method: str, body: object, file: Attachment | None
) -> tuple[str | None, bytes | FormData | None]:
    if file is not None:
        form = FormData(quote_fields=False)
        json_payload = msgspec.json.encode(body).decode()  # bytes would become a file
        form.add_field("payload_json", json_payload, content_type=_JSON_CONTENT_TYPE)
        file_content_type = "text/plain; charset=utf-8"
        form.add_field("files[0]", file.text, filename=file.name, content_type=file_content_type)
        return None, form
    if body is None:
        return None, b"" if method == "POST" else None
    return _JSON_CONTENT_TYPE, msgspec.json.encode(body)
