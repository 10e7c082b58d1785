"""Pages for login, language and theme, static files, API tokens, audit log, and data policy."""

import mimetypes
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from bot.chat.access import ApiScope, ApiToken, AuditEntry
from bot.console.login import SESSION_SECONDS, ConsoleLogins
from bot.console.pages import read_static_files
from bot.console.routes import (
    LANGUAGE_COOKIE,
    THEME_COOKIE,
    Caller,
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    Values,
    add_security_headers,
    redirect,
    route,
)
from bot.errors import RequestRefused
from bot.storage.data_kinds import PolicySection
from bot.storage.events import EventLog, EventRow
from bot.storage.operation import AuditLog
from bot.storage.tokens import ConsoleTokens
from bot.texts.text import translatable
from bot.value_class import value_class

_YEAR_SECONDS = 365 * 86_400
# Browsers read "\\" as "/", and skip tabs and line breaks: "/\t/evil.example" is another site.
_LOCAL_PATH_PATTERN = re.compile(r"/(?:[^\s\\/\x00-\x20\x7f][^\s\\\x00-\x20\x7f]*)?")
_ReturnPath = Annotated[str, Field(max_length=2000)]
_TokenText = Annotated[str, Field(max_length=500)]


def _discard_external_path(path: str) -> str:
    """Return the path if it is on this site, or else an empty string."""
    return path if _LOCAL_PATH_PATTERN.fullmatch(path) else ""


@value_class
class SessionPages(RouteGroup):
    logins: ConsoleLogins
    cookie_name: Callable[[web.Request], str]
    is_https: bool
    home_path: str

    @route("GET /", ApiScope.READ)
    async def redirect_home(self) -> web.Response:
        return redirect(self.home_path)

    @route("GET /login", None)
    async def login_page(self) -> Page:
        """Show the login page, which submits the one-time token in its URL's fragment."""
        return Page("login.html", {"problem": ""})

    @route("GET /static/{name}", None)
    async def send_static(self, name: str) -> web.Response:
        content = read_static_files().get(name)
        if content is None:
            raise RequestRefused(404, translatable("There is no such file."))
        content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        response = web.Response(body=content, content_type=content_type)
        if content_type.startswith("text/"):
            response.charset = "utf-8"
            response.enable_compression()
        add_security_headers(response)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response

    @route("POST /login", None)
    async def log_in(
        self, request: ConsoleRequest, token: _TokenText, back: _ReturnPath = ""
    ) -> web.Response:
        """Log in with a token or a login link, and redirect to `back`."""
        session = await self.logins.log_in(token.rpartition("#")[2].strip())
        response = redirect(_discard_external_path(back) or self.home_path)
        self._set_cookie(response, self.cookie_name(request.http), session, int(SESSION_SECONDS))
        return response

    @route("POST /logout", ApiScope.READ)
    async def log_out(self, request: ConsoleRequest) -> web.Response:
        cookie = self.cookie_name(request.http)
        await self.logins.log_out(request.http.cookies.get(cookie, ""))
        response = redirect("/login")
        self._set_cookie(response, cookie, "", 0)
        return response

    def _set_cookie(self, response: web.Response, name: str, value: str, max_age: int) -> None:
        response.set_cookie(
            name, value, max_age=max_age, httponly=True, samesite="Strict", secure=self.is_https
        )

    @route("POST /look", None)
    async def set_appearance(
        self,
        language: Literal["en", "zh"] | None = None,
        theme: Literal["system", "light", "dark"] | None = None,
        back: _ReturnPath = "/",
    ) -> web.Response:
        """Store the language and theme in cookies; omitted values stay unchanged."""
        response = redirect(_discard_external_path(back) or "/")
        for name, value in ((LANGUAGE_COOKIE, language), (THEME_COOKIE, theme)):
            if value is not None:
                self._set_cookie(response, name, value, _YEAR_SECONDS)
        return response


_MAX_AUDIT_ENTRIES = 200
# The first word of an API token's `Caller.name`, and the last word of actions on tokens.
_API_CALLER_KIND = "token"


@value_class
class PolicyPage(RouteGroup):
    describe_policy: Callable[[], Sequence[PolicySection]]

    @route("GET /policy", ApiScope.READ, template="policy.html")
    @route("GET /api/v1/policy", ApiScope.READ)
    async def list_data_kinds(self) -> Mapping[str, Sequence[PolicySection]]:
        """List the data stored about people, by kind."""
        return {"kinds": self.describe_policy()}


@value_class
class AccessPage(RouteGroup):
    navigation = (NavigationItem("/access", translatable("Access and audit"), "access"),)

    tokens: ConsoleTokens
    audit_log: AuditLog
    events: EventLog

    @route("GET /api/v1/events", ApiScope.READ)
    async def list_webhook_events(self) -> Mapping[str, Sequence[EventRow]]:
        """List the newest webhook events, and whether each was sent."""
        return {"events": await self.events.list_recent()}

    @route("GET /access", ApiScope.READ, template="access.html")
    async def show(self, request: ConsoleRequest) -> Values:
        """Show the audit log, and the API tokens if the caller may list tokens."""
        may_list_tokens = ApiScope.OPERATE in request.caller.scopes
        tokens = await self.tokens.api_tokens() if may_list_tokens else None
        entries = await self._read_newest_entries(request.caller, _MAX_AUDIT_ENTRIES)
        events = await self.events.list_recent()
        return {"tokens": tokens, "entries": entries, "events": events}

    @route("GET /api/v1/tokens", ApiScope.OPERATE)
    async def list_tokens(self) -> Mapping[str, Sequence[ApiToken]]:
        """List the API tokens."""
        return {"tokens": await self.tokens.api_tokens()}

    @route("DELETE /api/v1/tokens/{name}", ApiScope.OPERATE)
    @route("POST /access/revoke", ApiScope.OPERATE, redirect="/access")
    async def revoke_token(
        self,
        request: ConsoleRequest,
        name: Annotated[str, Field(max_length=500, pattern=r"^[^\x00]*$")],
    ) -> Mapping[str, str]:
        """Revoke an API token."""
        if not await self.tokens.revoke_api_token(name):
            raise RequestRefused(404, translatable("There is no token with this name."))
        await self.audit_log.record(request.caller.name, "revoke token", name)
        return {"name": name}

    @route("GET /api/v1/audit", ApiScope.READ)
    async def list_changes(
        self, request: ConsoleRequest, limit: Annotated[int, Field(ge=1, le=1000)] = 100
    ) -> Mapping[str, Sequence[AuditEntry]]:
        """List the newest entries of the audit log."""
        return {"entries": await self._read_newest_entries(request.caller, limit)}

    async def _read_newest_entries(self, reader: Caller, limit: int) -> Sequence[AuditEntry]:
        """Return the newest audit entries, with token names only if the reader may list tokens."""
        entries = await self.audit_log.newest(limit)
        if ApiScope.OPERATE in reader.scopes:
            return entries
        return [_hide_token_names(one, reader) for one in entries]


def _hide_token_names(entry: AuditEntry, reader: Caller) -> AuditEntry:
    is_other_token = entry.who.startswith(f"{_API_CALLER_KIND} ") and entry.who != reader.name
    who = _API_CALLER_KIND if is_other_token else entry.who
    subject = "" if entry.action.endswith(f" {_API_CALLER_KIND}") else entry.subject
    return replace(entry, who=who, subject=subject)
