"""The console: register the route table, admit requests, answer as pages or as JSON."""

import secrets
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
import msgspec
from aiohttp import web
from bot.console.gate import RequestGate
from bot.console.pages import PageRenderer
from bot.console.routes import NOBODY
from bot.console.routes import ConsoleRequest
from bot.console.routes import Page
from bot.console.routes import Route
from bot.console.routes import RouteGroup
from bot.console.routes import display_preferences_of
from bot.console.routes import protected
from bot.errors import RequestRefused
from bot.errors import StoreError
from bot.errors import UserError
from bot.texts.text import Text
from bot.texts.text import translatable
from bot.texts.text import translate


_DATABASE_FAILED = translatable("The database failed; the log says why.")
_TITLES = {
    401: translatable("Log in"),
    403: translatable("Not allowed"),
    404: translatable("Not found"),
}


class Console:
    """All groups of routes as one; `add_routes` serves them."""

    def __init__(self, gate: RequestGate, groups: Sequence[RouteGroup]) -> None:
        self._gate = gate
        self.routes = [route for group in groups for route in group.routes]
        self._renderer = PageRenderer([item for group in groups for item in group.navigation])

    def add_routes(self, app: web.Application) -> None:
        for route in self.routes:
            app.router.add_route(route.method, route.path, self._handler(route))

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                request, given = await self._gate.admit(http, route)
                answer = await route.handle(request, given)
            except (RequestRefused, UserError, StoreError) as error:
                return self._refusal(http, route, error)
            except web.HTTPRequestEntityTooLarge as error:
                return self._refusal(http, route, RequestRefused(413, error.text or "too large"))
            return self._respond(answer, request)

        return handle

    def _respond(self, answer: object, request: ConsoleRequest) -> web.StreamResponse:
        match answer:
            case Page():
                return self._page(answer, request)
            case web.StreamResponse():
                return answer
            case _:
                body = _to_json(answer, request.look.language)
                response = web.Response(body=body, content_type="application/json")
                response.enable_compression()
                return protected(response)

    def _page(self, page: Page, request: ConsoleRequest) -> web.Response:
        nonce = secrets.token_urlsafe(16)
        html = self._renderer.render(page, request, nonce)
        response = web.Response(text=html, content_type="text/html", status=page.status)
        response.enable_compression()
        return protected(response, nonce)

    def _refusal(
        self, http: web.Request, route: Route, error: RequestRefused | UserError | StoreError
    ) -> web.Response:
        match error:
            case RequestRefused():
                status, text = error.status, error.text
            case UserError():
                status, text = 422, error.text
            case StoreError():
                status, text = 503, _DATABASE_FAILED
        reader = ConsoleRequest(http, NOBODY, display_preferences_of(http))
        if route.is_api:  # the scripts of pages show it as it is
            told = translate(text, reader.look.language)
            return protected(web.json_response({"error": told}, status=status))
        title = _TITLES.get(status, translatable("That did not work"))
        if status == 401:  # with what logs in
            return self._page(Page("login.html", {"problem": text}, status), reader)
        return self._page(Page("refused.html", {"title": title, "problem": text}, status), reader)


def _to_json(answer: object, language: str) -> bytes:
    def encode(value: object) -> str:
        if isinstance(value, Text):
            return value.translate_to(language)
        raise NotImplementedError(type(value))

    return msgspec.json.encode(answer, enc_hook=encode)
