"""The tokens and sessions of the console, in SQL."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select

from bot.chat.access import ApiToken, Scope
from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.tables import console_token

_LOGIN, _SESSION, _API = "login", "session", "api"
_IS_FRESH = or_(console_token.c.expires_at.is_(None), console_token.c.expires_at > bindparam("now"))
_OF_DIGEST = (
    console_token.c.sha256 == bindparam("digest"),
    console_token.c.kind == bindparam("of_kind"),
    _IS_FRESH,
)
_FIND = select(console_token).where(*_OF_DIGEST)
_USE = delete(console_token).where(*_OF_DIGEST)
_DELETE_EXPIRED = delete(console_token).where(console_token.c.expires_at <= bindparam("now"))
_API_TOKENS = (
    select(console_token).where(console_token.c.kind == _API).order_by(console_token.c.name)
)


class SqlConsoleTokens:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add_login(self, digest: str, expires_at: float) -> None:
        """Store a one-time token that somebody may log in with."""
        await self._add(digest, _LOGIN, expires_at)

    async def use_login(self, digest: str) -> bool:
        """Delete a one-time token; return whether it was there and had not expired."""
        return await self._use(digest, _LOGIN)

    async def add_session(self, digest: str, expires_at: float) -> None:
        await self._add(digest, _SESSION, expires_at)

    async def has_session(self, digest: str) -> bool:
        """Return whether a session exists that has not expired."""
        asked = self._asked(digest, _SESSION)
        return bool(await self._database.read(lambda c: c.execute(_FIND, asked).first()))

    async def end_session(self, digest: str) -> None:
        await self._use(digest, _SESSION)

    async def end_all_sessions(self) -> int:
        """End all sessions and delete all one-time tokens; return the number of sessions."""

        def unit(connection: Connection) -> int:
            count = select(func.count()).where(
                console_token.c.kind == _SESSION, console_token.c.expires_at > self._clock.now()
            )
            sessions: int = connection.execute(count).scalar_one()
            connection.execute(delete(console_token).where(console_token.c.kind != _API))
            return sessions

        return await self._database.write(unit)

    async def add_api_token(self, digest: str, token: ApiToken) -> bool:
        """Store a token; return False if its name is taken."""
        row = {
            "sha256": digest,
            "kind": _API,
            "name": token.name,
            "scopes": " ".join(sorted(token.scopes)),
            "created_at": token.created_at,
        }

        def unit(connection: Connection) -> bool:
            taken = select(console_token.c.name).where(console_token.c.name == token.name)
            if connection.execute(taken).first() is not None:
                return False
            connection.execute(insert(console_token).values(row))
            return True

        return await self._database.write(unit)

    async def find_api_token(self, digest: str) -> ApiToken | None:
        asked = self._asked(digest, _API)
        row = await self._database.read(lambda c: c.execute(_FIND, asked).first())
        return _api_token(row.name, row.scopes, row.created_at) if row else None

    async def api_tokens(self) -> Sequence[ApiToken]:
        """Return all tokens by name."""
        rows = await self._database.read(lambda c: c.execute(_API_TOKENS).all())
        return [_api_token(row.name, row.scopes, row.created_at) for row in rows]

    async def revoke_api_token(self, name: str) -> bool:
        """Delete a token; return False if there is none of that name."""
        revoke = delete(console_token).where(console_token.c.name == name)
        return bool(await self._database.write(lambda c: c.execute(revoke).rowcount))

    async def _add(self, digest: str, kind: str, expires_at: float) -> None:
        now = self._clock.now()
        row = {"sha256": digest, "kind": kind, "created_at": now, "expires_at": expires_at}

        def unit(connection: Connection) -> None:
            connection.execute(_DELETE_EXPIRED, {"now": now})
            connection.execute(insert(console_token).values(row))

        await self._database.write(unit)

    async def _use(self, digest: str, kind: str) -> bool:
        asked = self._asked(digest, kind)
        if not await self._database.read(lambda c: c.execute(_FIND, asked).first()):
            return False  # whoever guesses keeps no writer waiting
        return bool(await self._database.write(lambda c: c.execute(_USE, asked).rowcount))

    def _asked(self, digest: str, kind: str) -> dict[str, object]:
        return {"digest": digest, "of_kind": kind, "now": self._clock.now()}


def _api_token(name: str, scopes: str, created_at: float) -> ApiToken:
    return ApiToken(name, frozenset(map(Scope, scopes.split())), created_at)
