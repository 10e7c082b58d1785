"""The route table: what is served where, to whom, with which models and in which language."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, TypeAlias, TypeVar

from aiohttp import web
from pydantic import BaseModel

from bot.chat.access import Scope
from bot.errors import RequestRefused
from bot.texts.text import LANGUAGES, Text, language_of, translatable
from bot.value_class import value_class

M = TypeVar("M", bound=BaseModel)


@value_class
class Caller:
    """Who sent a request that was let in."""

    name: str
    """"session", or "token" and its name; stands in the audit log."""
    scopes: frozenset[Scope]
    csrf_token: str = ""
    """What a change from a page must carry; empty for a token of the API."""

    @property
    def may_spend(self) -> bool:
        """Whether what is asked for may cost money."""
        return Scope.OPERATE in self.scopes


NOBODY = Caller("nobody", frozenset())
"""Who asks for what is public."""


def check_scope(caller: Caller, scope: Scope) -> None:
    """Raise `RequestRefused` with 403 for a caller without a scope."""
    if scope not in caller.scopes:
        raise RequestRefused(
            403, translatable("This token lacks the scope {scope}.", scope=scope.value)
        )


def is_number(given: str) -> bool:
    """Whether a text is a number that databases take: 64 bits."""
    return given.isascii() and given.isdecimal() and len(given) < 19


@value_class
class Look:
    """How a reader wants pages."""

    language: str
    theme: str
    """"light", "dark" or "system"."""


@value_class
class ConsoleRequest:
    """A request that was let in, with its validated values."""

    http: web.Request
    caller: Caller
    look: Look
    _body: BaseModel | None = None
    _query: BaseModel | None = None
    _is_let_in: Callable[[], Awaitable[bool]] | None = None

    def body(self, model: type[M]) -> M:
        """Return the body, validated as the model that its route names."""
        assert isinstance(self._body, model)  # noqa: S101 # the route table says so
        return self._body

    def query(self, model: type[M]) -> M:
        """Return the query, validated as the model that its route names."""
        assert isinstance(self._query, model)  # noqa: S101
        return self._query

    async def is_still_let_in(self) -> bool:
        """Whether the session or token has not ended since, for what is sent for longer."""
        return self._is_let_in is None or await self._is_let_in()

    def number(self, name: str) -> int:
        """Return a number in the path; raises `RequestRefused` with 404 where it is none."""
        given = self.http.match_info[name]
        if not is_number(given):
            raise RequestRefused(404, translatable("There is nothing of this number."))
        return int(given)


@value_class
class Page:
    """A page to render: a template in bot/console/templates and its values."""

    template: str
    values: Mapping[str, object] = field(default_factory=dict)
    status: int = 200


RouteAnswer: TypeAlias = BaseModel | Page | web.StreamResponse
RouteHandler: TypeAlias = Callable[[ConsoleRequest], Awaitable[RouteAnswer]]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[RouteAnswer]])


@value_class
class Route:
    """One entry of the route table; it registers the handler and describes it in OpenAPI."""

    method: str
    path: str
    """As aiohttp reads it: "/answers/{number}"; the API's begin with /api/v1/."""
    handler: RouteHandler
    scope: Scope | None
    """What a token needs; None: everybody may ask."""
    summary: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    """None: a page, or another response that the handler makes."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Further statuses and when they are answered."""

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")


def route(
    method_and_path: str,
    scope: Scope | None,
    summary: str,
    *,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    answer: type[BaseModel] | None = None,
    errors: Mapping[int, str] | None = None,
) -> Callable[[Handler], Handler]:
    """Make a method of a `RouteGroup` the handler of a route: `@route("GET /answers", ...)`.

    `Route` has the meaning of the arguments. Decorators stack.
    """
    method, _, path = method_and_path.partition(" ")

    def register(handler: Handler) -> Handler:
        added = Route(method, path, handler, scope, summary, body, query, answer, errors or {})
        vars(handler)["routes"] = (added, *vars(handler).get("routes", ()))
        return handler

    return register


@value_class
class NavigationItem:
    """A page that the side navigation and the tabs at the bottom lead to."""

    path: str
    title: Text
    icon: str
    """The name of an icon in templates/icons.html."""


class RouteGroup:
    """Pages and routes of the API that belong together: methods with `@route`."""

    navigation: ClassVar[Sequence[NavigationItem]] = ()
    """Its places in the side navigation."""

    @property
    def routes(self) -> list[Route]:
        return [
            replace(each, handler=handler.__get__(self))
            for handler in vars(type(self)).values()
            for each in getattr(handler, "routes", ())
        ]


def redirect(path: str) -> web.Response:
    """Answer a form: load another page."""
    return web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})


THEMES = ("system", "light", "dark")
LANGUAGE_COOKIE = "troupe_language"
THEME_COOKIE = "troupe_theme"


def look_of(http: web.Request) -> Look:
    """Return what the cookies say, else the browser's language and the system's theme."""
    theme = http.cookies.get(THEME_COOKIE, "")
    language = http.cookies.get(LANGUAGE_COOKIE, "")
    return Look(
        language if language in LANGUAGES else accepted_language(http),
        theme if theme in THEMES else THEMES[0],
    )


def accepted_language(http: web.Request) -> str:
    """Return the language of ours that `Accept-Language` likes best; English if it names none."""
    liked: list[tuple[float, str]] = []
    for part in http.headers.get("Accept-Language", "").split(","):
        name, _, quality = part.strip().partition(";q=")
        base = name.split("-")[0].strip().lower()
        if base in LANGUAGES:
            liked.append((_quality(quality), base))
    return max(liked, key=lambda one: one[0])[1] if liked else language_of(None)


def _quality(text: str) -> float:
    try:
        return float(text or 1)
    except ValueError:
        return 0.0
