"""Login tokens, API tokens and sessions of the web console, in SQL."""

from collections.abc import Sequence

from bot.chat.access import ApiScope, ApiToken
from bot.storage.database import ClockStore, run_readonly, transaction
from bot.storage.statements import SQL, Unit

_LOGIN_KIND, _SESSION_KIND, _API_KIND = "login", "session", "api"


class ConsoleTokens(ClockStore):
    """Stores the console's login tokens, sessions and API tokens, only as SHA-256 hashes."""

    async def add_login(self, digest: str, expires_at: float) -> None:
        """Store a one-time login token."""
        await self._add_token(digest, _LOGIN_KIND, expires_at)

    async def use_login(self, digest: str) -> bool:
        """Delete a one-time token; return whether it was valid."""
        return await self._use_token(digest, _LOGIN_KIND)

    async def add_session(self, digest: str, expires_at: float) -> None:
        await self._add_token(digest, _SESSION_KIND, expires_at)

    @run_readonly
    def has_session(self, digest: str) -> Unit[bool]:
        """Return whether an unexpired session exists."""
        return bool(
            (yield SQL["find_token"].query_alone(self._token_values(digest, _SESSION_KIND)))
        )

    async def end_session(self, digest: str) -> None:
        await self._use_token(digest, _SESSION_KIND)

    @transaction
    def end_all_sessions(self) -> Unit[int]:
        """End all sessions, delete all one-time tokens, and return the number of sessions."""
        now, token_rows = self._clock.now(), (yield SQL["end_sessions"].query())
        return sum(kind == _SESSION_KIND and expires_at > now for kind, expires_at in token_rows)

    @transaction
    def add_api_token(self, digest: str, token: ApiToken) -> Unit[bool]:
        """Store an API token; return False if its name is already used."""
        scopes, channels = " ".join(sorted(token.scopes)), " ".join(token.channels)
        row = {"name": token.name, "scopes": scopes, "channels": channels}
        values = {"digest": digest, "created_at": token.created_at, **row}
        return bool((yield SQL["add_api_token"].query(values)))

    @run_readonly
    def find_api_token(self, digest: str) -> Unit[ApiToken | None]:
        rows = yield SQL["find_token"].query_alone(self._token_values(digest, _API_KIND))
        return _to_api_token(*rows[0]) if rows else None

    @run_readonly
    def api_tokens(self) -> Unit[Sequence[ApiToken]]:
        """Return all API tokens, ordered by name."""
        return [_to_api_token(*row) for row in (yield SQL["api_tokens"].query_alone())]

    @transaction
    def revoke_api_token(self, name: str) -> Unit[bool]:
        """Delete an API token; return False if no token has this name."""
        return bool((yield SQL["revoke_token"].query(name=name)))

    @transaction
    def _add_token(self, digest: str, kind: str, expires_at: float) -> Unit[None]:
        row = {**self._token_values(digest, kind), "expires_at": expires_at}
        yield SQL["delete_expired_tokens"].query(row)
        yield SQL["add_token"].query(row)

    @transaction
    def _use_token(self, digest: str, kind: str) -> Unit[bool]:
        return bool((yield SQL["use_token"].query(self._token_values(digest, kind))))

    def _token_values(self, digest: str, kind: str) -> dict[str, object]:
        return {"digest": digest, "kind": kind, "at": self._clock.now()}


def _to_api_token(name: str, scopes: str, created_at: float, channels: str) -> ApiToken:
    return ApiToken(name, tuple(map(ApiScope, scopes.split())), created_at, tuple(channels.split()))
