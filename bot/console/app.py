"""The console's web application: admit requests, call their handlers, and send the responses.

A request is admitted if its Host and Origin, session or API token, scope, CSRF token, and values
are valid.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from pydantic import BaseModel, ValidationError

from bot.console.login import ConsoleLogins, is_csrf_token
from bot.console.pages import DisplayNames, PageRenderer
from bot.console.routes import (
    NOBODY,
    Caller,
    ConsoleRequest,
    Page,
    Route,
    RouteGroup,
    add_security_headers,
    check_scope,
)
from bot.console.server import UNREADABLE_BODY_ERRORS
from bot.errors import RequestRefused, SettingsError, StoreError, TroupeError, UserError
from bot.settings import ConsoleSettings
from bot.texts.text import Text, translatable, translate

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_FORM_MIME = "application/x-www-form-urlencoded"
_UPLOAD_MIME = "multipart/form-data"
_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", "::1"}


class RequestGate:
    """Authorizes requests and validates their bodies and queries."""

    def __init__(self, settings: ConsoleSettings, logins: ConsoleLogins) -> None:
        self._logins = logins
        self._trusted_proxy = settings.trusted_proxy
        names = {settings.host.lower()}
        if settings.is_loopback:
            names |= _LOOPBACK_HOSTS
        if settings.url is not None:
            names.add(urlsplit(str(settings.url)).hostname or "")
        self._host_names = names
        self._is_https = settings.is_https

    def cookie_name(self, http: web.Request) -> str:
        """Return the session cookie's name, with the port over HTTP because ports share cookies."""
        _, port, *_ = http.get_extra_info("sockname", ("", 0))
        return "__Host-troupe" if self._is_https else f"troupe_session_{port}"

    async def admit_request(
        self, http: web.Request, route: Route
    ) -> tuple[ConsoleRequest, BaseModel | None]:
        """Return the request and its validated body or query; raises `RequestRefused`."""
        self._check_host_and_origin(http)
        caller = await self._identify(http, route)
        form = await _read_form(http, takes_files=route.scope is not None)
        if caller.csrf_token and http.method not in _SAFE_METHODS:
            csrf_token = http.headers.get("X-CSRF-Token") or form.get("csrf", "")
            if not is_csrf_token(csrf_token, caller):
                text = translatable("This form belongs to another session; reload the page.")
                raise RequestRefused(403, text)
        arguments = None
        if route.body_model is not None:
            arguments = _validate_arguments(route.body_model, await _read_body(http, form))
        elif route.query_model is not None:
            arguments = _validate_arguments(route.query_model, dict(http.query))
        is_admitted = partial(self._is_admitted, http, route)
        return ConsoleRequest(http, caller, is_admitted), arguments

    def _check_host_and_origin(self, http: web.Request) -> None:
        if self._trusted_proxy is not None and http.remote != self._trusted_proxy:
            raise RequestRefused(403, translatable("Only the trusted proxy may connect."))
        if _parse_host_name(http.host) not in self._host_names:
            text = translatable(
                "The console does not accept this host name; set TROUPE_CONSOLE__URL to use it."
            )
            raise RequestRefused(403, text)
        origin = http.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != http.host.lower():
            raise RequestRefused(403, translatable("The request comes from another site."))
        needs_origin = http.method not in _SAFE_METHODS and "Authorization" not in http.headers
        if origin is None and needs_origin:
            text = translatable("The request has no Origin header. Use a browser or an API token.")
            raise RequestRefused(403, text)

    async def _identify(self, http: web.Request, route: Route) -> Caller:
        if route.scope is None:
            return NOBODY
        caller = await self._find_caller(http)
        if caller is None:
            text = translatable("Log in first; `troupe console url` prints a login link.")
            raise RequestRefused(401, text)
        if route.other_scope not in caller.scopes:
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
            return await self._logins.find_api_caller(http.headers)
        session = http.cookies.get(self.cookie_name(http))
        return await self._logins.find_caller(session) if session else None


def _parse_host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _read_form(http: web.Request, *, takes_files: bool) -> Mapping[str, str]:
    """Return a form's fields with LF line breaks; uploaded files stay in the request."""
    if http.content_type != _FORM_MIME and not (takes_files and http.content_type == _UPLOAD_MIME):
        return {}
    try:
        form = await http.post()
    except (ValueError, LookupError):  # LookupError: an unknown encoding
        raise RequestRefused(422, translatable("The form is not valid UTF-8.")) from None
    except (*UNREADABLE_BODY_ERRORS, RuntimeError):  # RuntimeError: an unknown transfer encoding
        raise RequestRefused(422, translatable("The body cannot be read.")) from None
    return {
        name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)
    }


async def _read_body(http: web.Request, form: Mapping[str, str]) -> object:
    if http.content_type in {_FORM_MIME, _UPLOAD_MIME}:
        return {name: value for name, value in form.items() if name != "csrf"}
    if http.content_type != "application/json":
        raise RequestRefused(415, translatable("Send the body as application/json."))
    try:
        return json.loads(await http.read())
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        raise RequestRefused(422, translatable("The body is not valid JSON.")) from None
    except UNREADABLE_BODY_ERRORS:
        raise RequestRefused(422, translatable("The body cannot be read.")) from None


def _validate_arguments(model: type[BaseModel], data: object) -> BaseModel:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        )
        raise RequestRefused(422, problems) from None


_DATABASE_FAILED_TEXT = translatable("The database failed; the log says why.")
_ERROR_TITLES = {403: translatable("Not allowed"), 404: translatable("Not found")}


class Console:
    """Serves all route groups; `add_routes` adds their routes to an aiohttp application."""

    def __init__(
        self, gate: RequestGate, groups: Sequence[RouteGroup], names: DisplayNames | None = None
    ) -> None:
        self._gate = gate
        self.routes = [route for group in groups for route in group.routes]
        navigation = [item for group in groups for item in group.navigation]
        self._renderer = PageRenderer(navigation, names)

    def add_routes(self, app: web.Application) -> None:
        for route in self.routes:
            app.router.add_route(route.method, route.path, self._make_handler(route))

    def _make_handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(http: web.Request) -> web.StreamResponse:
            request = ConsoleRequest(http, NOBODY)
            try:
                request, arguments = await self._gate.admit_request(http, route)
                result = await route.handle(request, arguments)
                if isinstance(result, Page) and self._renderer.names:
                    await self._renderer.names.refresh()
            except (RequestRefused, SettingsError, StoreError, UserError) as error:
                return self._respond_with_refusal(request, route, error)
            except web.HTTPRequestEntityTooLarge as error:
                refusal = RequestRefused(413, error.text or "too large")
                return self._respond_with_refusal(request, route, refusal)
            return self._respond(result, request)

        return handle

    def _respond(self, result: object, request: ConsoleRequest) -> web.StreamResponse:
        match result:
            case Page():
                return self._respond_with_page(result, request)
            case web.StreamResponse():
                return result
            case _:
                body = _to_json(result, request.language)
                response = web.Response(body=body, content_type="application/json")
                response.enable_compression()
                return add_security_headers(response)

    def _respond_with_page(self, page: Page, request: ConsoleRequest) -> web.Response:
        nonce = secrets.token_urlsafe(16)
        html = self._renderer.render(page, request, nonce)
        response = web.Response(text=html, content_type="text/html", status=page.http_status)
        response.enable_compression()
        return add_security_headers(response, nonce)

    def _respond_with_refusal(
        self, request: ConsoleRequest, route: Route, error: TroupeError
    ) -> web.Response:
        if isinstance(error, StoreError):
            error = RequestRefused(503, _DATABASE_FAILED_TEXT)
        status = error.status if isinstance(error, RequestRefused) else 422
        text = error.text
        if route.is_api:  # scripts of pages show this text unchanged
            message = translate(text, request.language)
            return add_security_headers(web.json_response({"error": message}, status=status))
        page = Page("login.html", {"problem": text}, status)
        if status != 401:  # logging in would not help
            title = _ERROR_TITLES.get(status, translatable("That did not work"))
            page = Page("refused.html", {"title": title, "problem": text}, status)
        return self._respond_with_page(page, request)


def _to_json(result: object, language: str) -> bytes:
    def encode_text(value: object) -> str:
        if isinstance(value, Text):
            return value.translate_to(language)
        raise NotImplementedError(type(value))

    return msgspec.json.encode(result, enc_hook=encode_text)
