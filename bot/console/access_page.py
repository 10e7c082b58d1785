"""Access and audit: the tokens of the API, and who changed what."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from bot.chat.access import ApiToken, AuditEntry, Scope
from bot.console.routes import Caller, ConsoleRequest, NavigationItem, Page, RouteGroup, route
from bot.errors import RequestRefused
from bot.ports import Clock
from bot.storage.operation import AuditLog
from bot.storage.tokens import ConsoleTokens
from bot.texts.text import translatable
from bot.value_class import value_class

_PAGE_ENTRIES = 200
# Begins the names of callers with an API token, and ends the names of actions on tokens.
_KIND = "token"


@value_class
class AccessPage(RouteGroup):
    """Shows who may use the console, and what was changed there or by admins in chats."""

    navigation = (NavigationItem("/access", translatable("Access and audit"), "access"),)

    tokens: ConsoleTokens
    audit: AuditLog
    clock: Clock

    @route("GET /access", Scope.READ)
    async def show(self, request: ConsoleRequest) -> Page:
        """Show the changes, and the tokens to whom the API lists them."""
        may_list = Scope.OPERATE in request.caller.scopes
        tokens = await self.tokens.api_tokens() if may_list else None
        entries = await self._changes(request.caller, _PAGE_ENTRIES)
        return Page("access.html", {"tokens": tokens, "entries": entries})

    @route("GET /api/v1/tokens", Scope.OPERATE)
    async def list_tokens(self) -> Mapping[str, Sequence[ApiToken]]:
        """List the tokens of the API."""
        return {"tokens": await self.tokens.api_tokens()}

    @route("DELETE /api/v1/tokens/{name}", Scope.OPERATE)
    @route("POST /access/revoke", Scope.OPERATE, then="/access")
    async def revoke(
        self,
        request: ConsoleRequest,
        name: Annotated[str, Field(max_length=500, pattern=r"^[^\x00]*$")],
    ) -> Mapping[str, str]:
        """Revoke a token of the API."""
        if not await self.tokens.revoke_api_token(name):
            raise RequestRefused(404, translatable("There is no token with this name."))
        now = self.clock.now()
        await self.audit.record(AuditEntry(now, request.caller.name, "revoke token", name))
        return {"name": name}

    @route("GET /api/v1/audit", Scope.READ)
    async def list_changes(
        self, request: ConsoleRequest, limit: Annotated[int, Field(ge=1, le=1000)] = 100
    ) -> Mapping[str, Sequence[AuditEntry]]:
        """List the newest changes."""
        return {"entries": await self._changes(request.caller, limit)}

    async def _changes(self, reader: Caller, limit: int) -> Sequence[AuditEntry]:
        """Return the newest changes; token names are only for those who may list tokens."""
        entries = await self.audit.newest(limit)
        if Scope.OPERATE in reader.scopes:
            return entries
        return [_without_token_names(one, reader) for one in entries]


def _without_token_names(entry: AuditEntry, reader: Caller) -> AuditEntry:
    """Return an entry for readers who may not list tokens."""
    is_other = entry.who.startswith(f"{_KIND} ") and entry.who != reader.name
    who = _KIND if is_other else entry.who
    subject = "" if entry.action.endswith(f" {_KIND}") else entry.subject
    return replace(entry, who=who, subject=subject)
