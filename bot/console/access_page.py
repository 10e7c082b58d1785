"""Access and audit: the tokens of the API, and who changed what."""

from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import ApiToken, AuditEntry, Scope
from bot.console.routes import (
    Caller,
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import RequestRefused
from bot.ports import Clock
from bot.storage.operation import AuditLog
from bot.storage.tokens import ConsoleTokens
from bot.texts.text import translatable

_PAGE_ENTRIES = 200
# A caller by a token has a name that begins with it, and actions on tokens end with it.
_KIND = "token"


class TokenRow(BaseModel):
    """A token of the API; the token itself is stored nowhere."""

    name: str
    scopes: list[Scope]
    created_at: float = Field(description="In Unix seconds.")


class TokenName(BaseModel):
    name: str = Field(max_length=500, pattern=r"^[^\x00]*$")


class TokenList(BaseModel):
    tokens: list[TokenRow]


class AuditRow(BaseModel):
    """One change."""

    at: float = Field(description="In Unix seconds.")
    who: str
    action: str
    subject: str
    before: str
    after: str


class AuditQuery(BaseModel):
    limit: int = Field(100, ge=1, le=1000)


class AuditList(BaseModel):
    entries: list[AuditRow]


class AccessPage(RouteGroup):
    """Shows who may use the console, and what was changed there or by admins in chats."""

    navigation = (NavigationItem("/access", translatable("Access and audit"), "access"),)

    def __init__(self, tokens: ConsoleTokens, audit: AuditLog, clock: Clock) -> None:
        self._tokens = tokens
        self._audit = audit
        self._clock = clock

    @route("GET /access", Scope.READ, "The page of access and audit.")
    async def _page(self, request: ConsoleRequest) -> Page:
        """Show the changes, and the tokens to whom the API lists them."""
        may_list = Scope.OPERATE in request.caller.scopes
        tokens = await self._tokens.api_tokens() if may_list else None
        entries = await self._changes(request.caller, _PAGE_ENTRIES)
        return Page("access.html", {"tokens": tokens, "entries": entries})

    @route("GET /api/v1/tokens", Scope.OPERATE, "List the tokens of the API.", answer=TokenList)
    async def _list_tokens(self, _: ConsoleRequest) -> TokenList:
        return TokenList(tokens=_token_rows(await self._tokens.api_tokens()))

    async def _revoke(self, name: str, caller: Caller) -> None:
        if not await self._tokens.revoke_api_token(name):
            raise RequestRefused(404, translatable("There is no token of this name."))
        now = self._clock.now()
        await self._audit.record(AuditEntry(now, caller.name, "revoke token", name))

    @route(
        "POST /access/revoke",
        Scope.OPERATE,
        "Revoke a token of the API from the page.",
        body=TokenName,
    )
    async def _revoke_by_form(self, request: ConsoleRequest) -> web.Response:
        await self._revoke(request.body(TokenName).name, request.caller)
        return redirect("/access")

    @route(
        "DELETE /api/v1/tokens/{name}",
        Scope.OPERATE,
        "Revoke a token of the API.",
        answer=TokenName,
    )
    async def _revoke_by_path(self, request: ConsoleRequest) -> TokenName:
        name = request.http.match_info["name"].replace("\0", "")  # PostgreSQL has none
        await self._revoke(name, request.caller)
        return TokenName(name=name)

    async def _changes(self, reader: Caller, limit: int) -> Sequence[AuditEntry]:
        """Return the newest changes; the names of tokens stand there as in the list of tokens."""
        entries = await self._audit.newest(limit)
        if Scope.OPERATE in reader.scopes:
            return entries
        return [_without_token_names(one, reader) for one in entries]

    @route(
        "GET /api/v1/audit",
        Scope.READ,
        "List the newest changes.",
        query=AuditQuery,
        answer=AuditList,
    )
    async def _list_changes(self, request: ConsoleRequest) -> AuditList:
        entries = await self._changes(request.caller, request.query(AuditQuery).limit)
        return AuditList(entries=[_audit_row(one) for one in entries])


def _token_rows(tokens: Sequence[ApiToken]) -> list[TokenRow]:
    return [
        TokenRow(name=one.name, scopes=sorted(one.scopes), created_at=one.created_at)
        for one in tokens
    ]


def _without_token_names(entry: AuditEntry, reader: Caller) -> AuditEntry:
    """Return an entry as whoever may not list the tokens reads it."""
    is_other = entry.who.startswith(f"{_KIND} ") and entry.who != reader.name
    who = _KIND if is_other else entry.who
    subject = "" if entry.action.endswith(f" {_KIND}") else entry.subject
    return replace(entry, who=who, subject=subject)


def _audit_row(one: AuditEntry) -> AuditRow:
    return AuditRow(
        at=one.at,
        who=one.who,
        action=one.action,
        subject=one.subject,
        before=one.before,
        after=one.after,
    )
