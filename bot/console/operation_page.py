"""Operation: what works, what waits, who holds which role, what answers, and what failed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import TypeAlias

from aiohttp import web

from bot.chat.access import Scope
from bot.console.live_events import fragment_events, stream_events
from bot.console.operation import ErrorDetail, OperationReports, OperationState, QueueSample
from bot.console.pages import PageRenderer, line_chart
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, route
from bot.errors import BackendError, RequestRefused, UserError
from bot.ports import Clock
from bot.texts.text import translatable, translate
from bot.value_class import value_class

TryProvider: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns what a provider answers; raises `BackendError` or `UserError`."""


@value_class
class TrialResult:
    """What a provider answered when it was tried."""

    provider: str
    works: bool
    answer: str
    """Or why it does not work."""


@value_class
class OperationPage(RouteGroup):
    """Shows the state of the service.

    Args:
        reports: what the service is doing.
        try_provider: sends one request to a provider.
        mask: removes secrets from what is shown.
        renderer: renders the part of the page that is renewed.
        clock: the time.
    """

    navigation = (NavigationItem("/operation", translatable("Operation"), "operation"),)

    reports: OperationReports
    try_provider: TryProvider
    mask: Callable[[str], str]
    renderer: PageRenderer
    clock: Clock
    _rendered: dict[object, object] = field(default_factory=dict)
    """By reader, of the state under "state"."""

    @route("GET /api/v1/operation", Scope.READ)
    async def state(self) -> OperationState:
        """What works, what waits, and who does what."""
        return await self.reports.current()

    @route("GET /operation", Scope.READ)
    async def show(self, request: ConsoleRequest) -> Page:
        state = await self.reports.current()
        chart = _queue_chart(self.reports.samples, request.look.language)
        return Page("operation.html", {"state": state, "chart": chart})

    @route("GET /operation/events", Scope.READ)
    async def send_events(self, request: ConsoleRequest) -> web.StreamResponse:
        """Send the state whenever it changes, as server-sent events."""

        async def render() -> str:
            return self._fragment(await self.reports.current(), request)

        shown = request.http.headers.get("Last-Event-ID", "")
        return await stream_events(request, fragment_events(shown, render, self.clock), self.clock)

    def _fragment(self, state: OperationState, request: ConsoleRequest) -> str:
        """Return what is renewed; the pages of one reader share it while the state is the same."""
        reader = (request.look.language, request.caller.csrf_token)
        if self._rendered.get("state") is not state:
            self._rendered.clear()
            self._rendered["state"] = state
        if reader not in self._rendered:
            page = Page("operation_state.html", {"state": state})
            self._rendered[reader] = self.renderer.render(page, request, "")
        return str(self._rendered[reader])

    @route("GET /api/v1/operation/errors/{error}", Scope.READ)
    async def find_error(self, error: str) -> ErrorDetail:
        """The steps of a message by the id that its author was told."""
        found = await self.reports.error(error)
        if found is None:
            text = translatable("No process has logged anything about such an error.")
            raise RequestRefused(404, text)
        return found

    @route("GET /operation/errors/{error}", Scope.READ)
    async def error_page(self, error: str) -> Page:
        return Page("operation_error.html", {"error": await self.find_error(error)})

    @route("POST /api/v1/operation/providers/{provider}/try", Scope.OPERATE)
    async def try_out(self, request: ConsoleRequest, provider: str) -> TrialResult:
        """Try a provider with one short request."""
        if all(one.name != provider for one in self.reports.providers):
            raise RequestRefused(404, translatable("There is no such provider."))
        try:
            answer, works = await self.try_provider(provider), True
        except BackendError as error:
            answer, works = str(error), False
        except UserError as error:
            answer, works = translate(error.text, request.look.language), False
        return TrialResult(provider, works, self.mask(answer))

    @route("POST /operation/providers/{provider}/try", Scope.OPERATE)
    async def trial_page(self, request: ConsoleRequest, provider: str) -> Page:
        return Page("operation_trial.html", {"trial": await self.try_out(request, provider)})


def _queue_chart(samples: Sequence[QueueSample], language: str) -> dict[str, object]:
    lines = (
        (translatable("Unanswered conversations"), [one.conversations for one in samples]),
        (translatable("Being answered"), [one.held for one in samples]),
        (translatable("Unsent messages"), [one.unsent for one in samples]),
    )
    times = [round(one.at) for one in samples]
    return line_chart("second", translatable("Time (UTC)"), times, lines, language)
