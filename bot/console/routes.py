"""The route table: the path, access scope, parameters and result of each page and API call."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, create_model

from bot.chat.access import ApiScope
from bot.errors import RequestRefused
from bot.texts.text import LANGUAGES, Text, supported_language, translatable
from bot.value_class import value_class

THEMES = ("system", "light", "dark")
LANGUAGE_COOKIE = "troupe_language"
THEME_COOKIE = "troupe_theme"
Values: TypeAlias = Mapping[str, object]
"""The values of a page's template."""
Response = TypeVar("Response", bound=web.StreamResponse)
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[object]])
_METHODS_WITH_BODY = {"POST", "PUT", "PATCH"}


@value_class
class Caller:
    name: str
    """The name in the audit log: "session", or "token" and the token's name."""
    scopes: frozenset[ApiScope]
    csrf_token: str = ""
    """The CSRF token that a change from a page must carry; empty for an API token."""
    channels: tuple[str, ...] = ()
    """The channels in which the scope `say` is valid; empty: all."""

    @property
    def may_spend(self) -> bool:
        return ApiScope.OPERATE in self.scopes


NOBODY = Caller("nobody", frozenset())


def check_scope(caller: Caller, scope: ApiScope) -> None:
    if scope not in caller.scopes:
        text = translatable("This token lacks the scope {scope}.", scope=scope.value)
        raise RequestRefused(403, text)


def parse_number(value: str, *, status: int = 404) -> int:
    """Parse a number that fits into a database column; raises `RequestRefused` for other text."""
    if value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)
    text = translatable("There is no entry with this number. It may have been deleted.")
    raise RequestRefused(status, text)


@value_class
class ConsoleRequest:
    http: web.Request
    caller: Caller
    _is_admitted: Callable[[], Awaitable[bool]] | None = None

    @property
    def language(self) -> str:
        """The language from the cookie, else the browser's first supported one, else English."""
        accept_header = self.http.headers.get("Accept-Language", "").lower()
        browser_languages = re.findall(r"(?:^|,)\s*([a-z]+)", accept_header)
        candidates = (self.http.cookies.get(LANGUAGE_COOKIE, ""), *browser_languages)
        return next((one for one in candidates if one in LANGUAGES), supported_language(None))

    @property
    def theme(self) -> str:
        """The theme, one of `THEMES`; the system's by default."""
        theme = self.http.cookies.get(THEME_COOKIE, "")
        return theme if theme in THEMES else THEMES[0]

    async def is_still_admitted(self) -> bool:
        """Whether the session or token is still valid; long responses check this repeatedly."""
        return self._is_admitted is None or await self._is_admitted()


@value_class
class Page:
    """A page to render: the name of its template, and the values to fill in."""

    template: str
    values: Mapping[str, object] = field(default_factory=dict)
    http_status: int = 200


def redirect(path: str) -> web.Response:
    """Respond to a form by redirecting to a page."""
    return web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})


def add_security_headers(response: Response, nonce: str = "") -> Response:
    """Add the headers that keep a page from loading or running third-party content."""
    style = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
    response.headers.update(
        {
            "Content-Security-Policy": f"default-src 'none'; script-src 'self'; style-src {style};"
            " connect-src 'self'; img-src 'self' data:; form-action 'self';"
            " frame-ancestors 'none'; base-uri 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
    )
    return response


def make_file_response(content: str | bytes, content_type: str, disposition: str) -> web.Response:
    """Return a file download; `disposition` completes the `Content-Disposition` header."""
    charset = "utf-8" if isinstance(content, str) else None
    body = content.encode() if isinstance(content, str) else content
    response = web.Response(body=body, content_type=content_type, charset=charset)
    response.headers["Content-Disposition"] = f"attachment; {disposition}"
    return add_security_headers(response)


@value_class
class Route:
    """A route of the console: it connects a method and path with a handler and its parameters."""

    method: str
    path: str
    """The path in aiohttp's syntax, such as "/answers/{number}"; the API's start with /api/v1/."""
    scope: ApiScope | None
    """The scope that a token needs; None if the route is public."""
    handler: Callable[..., Awaitable[object]]
    parameters: Mapping[str, Any]
    """The types of the handler's parameters, by name: the `ConsoleRequest`, parts of the path, and
    either a pydantic model of the whole body or query, or single fields of the body or query."""
    model: type[BaseModel] | None
    """The model that validates the body or, for methods without a body, the query."""
    result_type: Any
    """The type that is sent as JSON; None for a `Page` or another response."""
    redirect: str = ""
    """Where a form redirects, such as "/presets/{name}"; filled from the path or the result."""
    template: str = ""
    """The template of the page that shows the handler's result. The template's values are those of
    the result, if that is a mapping; any other result is the value `found`."""
    other_scope: ApiScope | None = None
    """Another scope that grants access."""

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]

    @property
    def body_model(self) -> type[BaseModel] | None:
        return self.model if self.method in _METHODS_WITH_BODY else None

    @property
    def query_model(self) -> type[BaseModel] | None:
        return None if self.method in _METHODS_WITH_BODY else self.model

    async def handle(self, request: ConsoleRequest, body: BaseModel | None) -> object:
        """Call the handler; `body` is the validated body or query."""
        arguments = [
            request if kind is ConsoleRequest else self._read_arg(request.http, name, kind, body)
            for name, kind in self.parameters.items()
        ]
        result = await self.handler(*arguments)
        if self.template and not isinstance(result, Page | web.StreamResponse):
            template_values = result if isinstance(result, Mapping) else {"found": result}
            return Page(self.template, template_values)
        return redirect(self._make_redirect_path(request.http, result)) if self.redirect else result

    def _read_arg(self, http: web.Request, name: str, kind: Any, body: BaseModel | None) -> object:
        if name not in http.match_info:
            return body if is_pydantic_model(kind) else getattr(body, name)
        path_part = http.match_info[name].replace("\0", "")  # PostgreSQL cannot store NUL
        return parse_number(path_part) if is_integer_type(kind) else path_part

    def _make_redirect_path(self, http: web.Request, result: object) -> str:
        values = {**http.match_info, **(result if isinstance(result, Mapping) else {})}
        return self.redirect.format_map({key: quote(str(one), "") for key, one in values.items()})


def is_pydantic_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_integer_type(annotation: Any) -> bool:
    return annotation is int or getattr(annotation, "__origin__", None) is int


def route(
    method_and_path: str,
    scope: ApiScope | None,
    *,
    redirect: str = "",
    template: str = "",
    other_scope: ApiScope | None = None,
) -> Callable[[Handler], Handler]:
    """Register a method as a route's handler; its signature defines what is validated and sent."""
    method, _, path = method_and_path.partition(" ")

    def register(handler: Handler) -> Handler:
        signature = inspect.signature(handler)
        parameters = list(signature.parameters.values())[1:]  # without self
        kind = signature.return_annotation
        new_route = Route(
            method,
            path,
            scope,
            handler,
            {one.name: one.annotation for one in parameters},
            _make_arguments_model(handler.__name__, path, parameters),
            None if isinstance(kind, type) and issubclass(kind, web.StreamResponse) else kind,
            redirect,
            template,
            other_scope,
        )
        vars(handler)["routes"] = (new_route, *vars(handler).get("routes", ()))
        return handler

    return register


def _make_arguments_model(
    name: str, path: str, parameters: Sequence[inspect.Parameter]
) -> type[BaseModel] | None:
    """Return a pydantic model of a handler's arguments, without the request and path parts."""
    request_parameters = [one for one in parameters if one.annotation is not ConsoleRequest]
    inputs = [one for one in request_parameters if f"{{{one.name}}}" not in path]
    if not inputs or is_pydantic_model(inputs[0].annotation):
        return inputs[0].annotation if inputs else None
    empty = inspect.Parameter.empty
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is empty else one.default) for one in inputs
    }
    return create_model("".join(map(str.capitalize, name.split("_"))), **fields)


@value_class
class NavigationItem:
    path: str
    title: Text
    icon: str


class RouteGroup:
    """A group of related pages and API routes: methods with `@route`."""

    navigation: ClassVar[Sequence[NavigationItem]] = ()

    @property
    def routes(self) -> list[Route]:
        return [
            replace(each, handler=handler.__get__(self))
            for handler in vars(type(self)).values()
            for each in getattr(handler, "routes", ())
        ]
