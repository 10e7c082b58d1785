"""Admit requests: Host and Origin, session or token, scope, CSRF token, valid values."""

import json
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ValidationError

from bot.console.login import ConsoleLogins, is_csrf_token
from bot.console.routes import (
    NOBODY,
    Caller,
    ConsoleRequest,
    Route,
    check_scope,
    display_preferences_of,
)
from bot.errors import RequestRefused
from bot.settings import ConsoleSettings
from bot.texts.text import translatable

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_URL_ENCODED = "application/x-www-form-urlencoded"
_WITH_FILES = "multipart/form-data"
# A body not encoded as its header says, or an unreadable head of a part.
_UNREADABLE = (web.RequestPayloadError, HttpProcessingError)
_LOOPBACK_NAMES = {"127.0.0.1", "localhost", "::1"}


class RequestGate:
    """Decides who may send a request, and validates what it carries."""

    def __init__(self, settings: ConsoleSettings, logins: ConsoleLogins) -> None:
        self._logins = logins
        self._proxy = settings.trusted_proxy
        names = {settings.host.lower()}
        if settings.is_loopback:
            names |= _LOOPBACK_NAMES
        if settings.url is not None:
            names.add(urlsplit(str(settings.url)).hostname or "")
        self._names = names
        self.cookie = "__Host-troupe" if settings.is_https else "troupe_session"

    async def admit(
        self, http: web.Request, route: Route
    ) -> tuple[ConsoleRequest, BaseModel | None]:
        """Return the request, and its validated body or query.

        Raises:
            RequestRefused: the caller may not send it, or its values are wrong.
        """
        self._check_sender(http)
        caller = await self._identify(http, route)
        form = await _read_form(http, with_files=route.scope is not None)
        if caller.csrf_token and http.method not in _SAFE_METHODS:
            sent = http.headers.get("X-CSRF-Token") or form.get("csrf", "")
            if not is_csrf_token(sent, caller):
                raise RequestRefused(
                    403, translatable("This form belongs to another session; reload the page.")
                )
        given = None
        if route.body is not None:
            given = _validated(route.body, await _read_body(http, form))
        elif route.query is not None:
            given = _validated(route.query, dict(http.query))
        is_admitted = partial(self._is_admitted, http, route)
        return ConsoleRequest(http, caller, display_preferences_of(http), is_admitted), given

    def _check_sender(self, http: web.Request) -> None:
        if self._proxy is not None and http.remote != self._proxy:
            raise RequestRefused(403, translatable("Only the trusted proxy may connect."))
        if _host_name(http.host) not in self._names:
            raise RequestRefused(
                403,
                translatable(
                    "The console is not served under this name; set TROUPE_CONSOLE__URL to use it."
                ),
            )
        origin = http.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != http.host.lower():
            raise RequestRefused(403, translatable("The request comes from another site."))
        needs_origin = http.method not in _SAFE_METHODS and "Authorization" not in http.headers
        if origin is None and needs_origin:
            raise RequestRefused(
                403, translatable("The request does not say which site it is from.")
            )

    async def _identify(self, http: web.Request, route: Route) -> Caller:
        if route.scope is None:
            return NOBODY
        caller = await self._find_caller(http)
        if caller is None:
            raise RequestRefused(
                401, translatable("Log in first; `troupe console url` prints a link for that.")
            )
        check_scope(caller, route.scope)
        return caller

    async def _is_admitted(self, http: web.Request, route: Route) -> bool:
        try:
            await self._identify(http, route)
        except RequestRefused:
            return False
        return True

    async def _find_caller(self, http: web.Request) -> Caller | None:
        if "Authorization" in http.headers:
            return await self._logins.find_api_token(http.headers)
        session = http.cookies.get(self.cookie)
        return await self._logins.find_session(session) if session else None


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _read_form(http: web.Request, *, with_files: bool) -> Mapping[str, str]:
    """Return the fields of a form with plain line breaks; its files stay with the request."""
    if http.content_type != _URL_ENCODED and not (with_files and http.content_type == _WITH_FILES):
        return {}
    try:
        form = await http.post()
    except (ValueError, LookupError):  # LookupError: an unknown encoding
        raise RequestRefused(422, translatable("The form is not valid UTF-8.")) from None
    except (*_UNREADABLE, RuntimeError):  # RuntimeError: an unknown transfer encoding
        raise RequestRefused(422, translatable("The body cannot be read.")) from None
    return {
        name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)
    }


async def _read_body(http: web.Request, form: Mapping[str, str]) -> object:
    if http.content_type in {_URL_ENCODED, _WITH_FILES}:
        return {name: value for name, value in form.items() if name != "csrf"}
    if http.content_type != "application/json":
        raise RequestRefused(415, translatable("Send the body as application/json."))
    try:
        return json.loads(await http.read())
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        raise RequestRefused(422, translatable("The body is not valid JSON.")) from None
    except _UNREADABLE:
        raise RequestRefused(422, translatable("The body cannot be read.")) from None


def _validated(model: type[BaseModel], given: object) -> BaseModel:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        )
        raise RequestRefused(422, problems) from None
