"""Log in and out, choose language and theme, load static files: what needs no session."""

import mimetypes
import re
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from bot.chat.access import Scope
from bot.console.login import SESSION_SECONDS, ConsoleLogins
from bot.console.pages import static_files
from bot.console.routes import (
    LANGUAGE_COOKIE,
    THEME_COOKIE,
    ConsoleRequest,
    Page,
    RouteGroup,
    protected,
    redirect,
    route,
)
from bot.errors import RequestRefused
from bot.texts.text import translatable
from bot.value_class import value_class

_YEAR_SECONDS = 365 * 86_400
# Browsers read "\\" as "/", and skip tabs and line breaks: "/\t/evil.example" is another site.
_IS_LOCAL_PATH = re.compile(r"/(?:[^\s\\/\x00-\x20\x7f][^\s\\\x00-\x20\x7f]*)?")


@value_class
class SessionPages(RouteGroup):
    """Serves the log-in, and what needs none."""

    logins: ConsoleLogins
    cookie: str
    """The name of the session cookie."""
    is_https: bool
    home: str
    """The page after the log-in."""

    @route("GET /", Scope.READ)
    async def redirect_home(self) -> web.Response:
        return redirect(self.home)

    @route("GET /login", None)
    async def login_page(self) -> Page:
        """Show the page that sends the one-time token of its fragment."""
        return Page("login.html", {"problem": ""})

    @route("GET /static/{name}", None)
    async def send_static(self, name: str) -> web.Response:
        content = static_files().get(name)
        if content is None:
            raise RequestRefused(404, translatable("There is no such file."))
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        response = web.Response(body=content, content_type=kind)
        if kind.startswith("text/"):
            response.charset = "utf-8"
            response.enable_compression()
        protected(response)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response

    @route("POST /login", None)
    async def log_in(self, token: Annotated[str, Field(max_length=200)]) -> web.Response:
        session = await self.logins.log_in(token)
        response = redirect(self.home)
        self._set_session(response, session, int(SESSION_SECONDS))
        return response

    @route("POST /logout", Scope.READ)
    async def log_out(self, request: ConsoleRequest) -> web.Response:
        await self.logins.log_out(request.http.cookies.get(self.cookie, ""))
        response = redirect("/login")
        self._set_session(response, "", 0)
        return response

    def _set_session(self, response: web.Response, value: str, max_age: int) -> None:
        response.set_cookie(
            self.cookie,
            value,
            max_age=max_age,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self.is_https,
        )

    @route("POST /look", None)
    async def choose_look(
        self,
        language: Literal["en", "zh"] | None = None,
        theme: Literal["system", "light", "dark"] | None = None,
        back: Annotated[str, Field(max_length=2000)] = "/",
    ) -> web.Response:
        """Keep language and theme in cookies; an absent value stays."""
        response = redirect(back if _IS_LOCAL_PATH.fullmatch(back) else "/")
        for name, value in ((LANGUAGE_COOKIE, language), (THEME_COOKIE, theme)):
            if value is not None:
                response.set_cookie(
                    name, value, max_age=_YEAR_SECONDS, path="/", httponly=True, samesite="Strict"
                )
        return response
