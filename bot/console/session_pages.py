"""Log in and out, choose language and theme, load static files: what needs no session."""

import mimetypes
import re
from typing import Literal

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.console.app import protected
from bot.console.login import SESSION_SECONDS, ConsoleLogins
from bot.console.pages import static_files
from bot.console.routes import (
    LANGUAGE_COOKIE,
    THEME_COOKIE,
    ConsoleRequest,
    Page,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import RequestRefused
from bot.texts.text import translatable

_YEAR_SECONDS = 365 * 86_400
# Browsers read "\\" as "/", and skip tabs and line breaks: "/\t/evil.example" is another site.
_IS_PATH_HERE = re.compile(r"/(?:[^\s\\/\x00-\x20\x7f][^\s\\\x00-\x20\x7f]*)?")


class LoginForm(BaseModel):
    token: str = Field(max_length=200)


class LookForm(BaseModel):
    """What a reader chose; what is not given stays."""

    language: Literal["en", "zh"] | None = None
    theme: Literal["system", "light", "dark"] | None = None
    back: str = Field("/", max_length=2000)


class SessionPages(RouteGroup):
    """Serves the log-in.

    Args:
        logins: exchanges tokens for sessions.
        cookie: the name of the cookie with the session.
        is_https: whether browsers reach the console over HTTPS.
        home: the page after the log-in.
    """

    def __init__(self, logins: ConsoleLogins, cookie: str, *, is_https: bool, home: str) -> None:
        self._logins = logins
        self._cookie = cookie
        self._is_https = is_https
        self._home = home

    @route("GET /", Scope.READ, "Go to the first page.")
    async def _redirect_home(self, _: ConsoleRequest) -> web.Response:
        return redirect(self._home)

    @route("GET /login", None, "The page that sends the one-time token of its fragment.")
    async def _login_page(self, _: ConsoleRequest) -> Page:
        return Page("login.html", {"problem": ""})

    @route("GET /static/{name}", None, "A style sheet or a script.")
    async def _send_static(self, request: ConsoleRequest) -> web.StreamResponse:
        name = request.http.match_info["name"]
        content = static_files().get(name)
        if content is None:
            raise RequestRefused(404, translatable("There is no such file."))
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        response = web.Response(body=content, content_type=kind)
        if kind.startswith("text/"):
            response.charset = "utf-8"
            response.enable_compression()
        protected(response, "")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response

    @route("POST /login", None, "Exchange a one-time token for a session.", body=LoginForm)
    async def _log_in(self, request: ConsoleRequest) -> web.Response:
        session = await self._logins.log_in(request.body(LoginForm).token)
        response = redirect(self._home)
        self._set_cookie(response, session, int(SESSION_SECONDS))
        return response

    @route("POST /logout", Scope.READ, "End this session.")
    async def _log_out(self, request: ConsoleRequest) -> web.Response:
        await self._logins.log_out(request.http.cookies.get(self._cookie, ""))
        response = redirect("/login")
        self._set_cookie(response, "", 0)
        return response

    def _set_cookie(self, response: web.Response, value: str, max_age: int) -> None:
        response.set_cookie(
            self._cookie,
            value,
            max_age=max_age,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._is_https,
        )

    @route("POST /look", None, "Choose language and theme.", body=LookForm)
    async def _choose_look(self, request: ConsoleRequest) -> web.Response:
        form = request.body(LookForm)
        response = redirect(form.back if _IS_PATH_HERE.fullmatch(form.back) else "/")
        for name, value in ((LANGUAGE_COOKIE, form.language), (THEME_COOKIE, form.theme)):
            if value is not None:
                response.set_cookie(
                    name, value, max_age=_YEAR_SECONDS, path="/", httponly=True, samesite="Strict"
                )
        return response
