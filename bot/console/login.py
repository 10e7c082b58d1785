"""Log in with a one-time token, and authenticate sessions and API tokens."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from bot.chat.access import ApiScope
from bot.chat.rate import Rate
from bot.console.routes import Caller
from bot.errors import RequestRefused
from bot.ports import Clock, RateLimits
from bot.runtime.secret_file import SecretFile
from bot.settings import ConsoleSettings, has_api_token_length
from bot.storage.tokens import ConsoleTokens
from bot.telemetry.secret_masker import register_secrets
from bot.texts.text import translatable

_log = structlog.get_logger(__name__)
LOGIN_LINK_SECONDS = 600.0
SESSION_SECONDS = 12 * 3600.0
_LOGINS_PER_MINUTE = 5
_MAX_TOKEN_CHARS = 200
API_TOKEN_PREFIX = "troupe_"  # noqa: S105


def generate_token(prefix: str = "") -> str:
    return prefix + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return a token's hash, the only form in which it is stored."""
    return hashlib.sha256(_encode_header(token)).hexdigest()


@dataclass(slots=True, eq=False)
class ConsoleLinks:
    """Makes links to console pages while the console is served."""

    tokens: ConsoleTokens
    clock: Clock
    address: str | None = None
    """The URL at which browsers open the console; None while it is not served."""

    async def make_login_link(self) -> str:
        """Return a link that logs in once within ten minutes.

        The token is in the URL's fragment, which browsers do not send, so no log contains it.
        """
        token = generate_token()
        await self.tokens.add_login(hash_token(token), self.clock.now() + LOGIN_LINK_SECONDS)
        return f"{(self.address or '').rstrip('/')}/login#{token}"

    def make_answer_url(self, number: int) -> str | None:
        """Return the URL of an answer's page; None if no console is served."""
        return self.address and f"{self.address.rstrip('/')}/answers/{number}"


class ConsoleLogins:
    """Starts and finds console sessions, finds API tokens, and allows 5 wrong tokens a minute."""

    def __init__(
        self,
        tokens: ConsoleTokens,
        rate_limits: RateLimits,
        clock: Clock,
        settings: ConsoleSettings,
    ) -> None:
        self._tokens = tokens
        token, file = settings.token, settings.token_file
        self._token_digest = hash_token(token.get_secret_value()) if token else None
        self._token_file = None if file is None else SecretFile(file, clock)
        self._rate_limits = rate_limits
        self._clock = clock

    async def log_in(self, token: str) -> str:
        """Exchange a one-time token for a session token; raises `RequestRefused` if it is wrong."""
        if not await self._tokens.use_login(hash_token(token[:_MAX_TOKEN_CHARS])):
            rate = Rate("console log-ins", _LOGINS_PER_MINUTE, 60)
            if await self._rate_limits.take([rate]) > 0:
                raise RequestRefused(429, translatable("Too many logins; try again in a minute."))
            text = translatable(
                "This link was already used or is older than ten minutes; `troupe console"
                " url` prints a new one."
            )
            raise RequestRefused(401, text)
        session_token = generate_token()
        expires_at = self._clock.now() + SESSION_SECONDS
        await self._tokens.add_session(hash_token(session_token), expires_at)
        return session_token

    async def log_out(self, session_token: str) -> None:
        await self._tokens.end_session(hash_token(session_token))

    async def find_caller(self, session_token: str) -> Caller | None:
        """Return a session cookie's caller; None if the session has ended."""
        if not await self._tokens.has_session(hash_token(session_token[:_MAX_TOKEN_CHARS])):
            return None
        csrf_token = hmac.new(_encode_header(session_token), b"csrf", hashlib.sha256).hexdigest()
        return Caller("session", frozenset(ApiScope), csrf_token)

    async def find_api_caller(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller for an `Authorization: Bearer` header; None if the token is unknown."""
        kind, _, token = headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        token_digest = hash_token(token.strip()[:_MAX_TOKEN_CHARS])
        self._reload_token_file()
        if self._token_digest is not None and hmac.compare_digest(token_digest, self._token_digest):
            return Caller("token of the settings", frozenset(ApiScope))
        stored_token = await self._tokens.find_api_token(token_digest)
        if stored_token is None:
            return None
        scopes = frozenset(stored_token.scopes)
        return Caller(f"token {stored_token.name}", scopes, channels=stored_token.channels)

    def _reload_token_file(self) -> None:
        if self._token_file is None or not self._token_file.reload_if_changed():
            return
        *other_secrets, token = self._token_file.secrets
        if other_secrets or not has_api_token_length(token):
            _log.error("console_token_not_usable")
            return
        register_secrets([token])
        self._token_digest = hash_token(token)
        _log.info("token_replaced", of="the console")


def is_csrf_token(token: str, caller: Caller) -> bool:
    """Return whether a given CSRF token is the caller's, comparing in constant time."""
    return hmac.compare_digest(_encode_header(token), caller.csrf_token.encode())


def _encode_header(text: str) -> bytes:
    """Encode a header's value, which may contain surrogates for invalid UTF-8."""
    return text.encode(errors="surrogatepass")
