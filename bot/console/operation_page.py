"""Operation: what works, what waits, who holds which role, what answers, and what failed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import TypeAlias

from aiohttp import web

from bot.chat.access import Scope
from bot.console.app import protected
from bot.console.live_events import stream_fragment
from bot.console.operation import (
    ErrorDetail,
    OperationReports,
    OperationState,
    QueueSample,
    TrialResult,
)
from bot.console.pages import PageRenderer
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    route,
)
from bot.errors import BackendError, RequestRefused, UserError
from bot.ports import Clock
from bot.texts.text import translatable, translate
from bot.value_class import value_class

TryProvider: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns what a provider answers; raises `BackendError` or `UserError`."""


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

    @route(
        "GET /api/v1/operation",
        Scope.READ,
        "What works, what waits, and who does what.",
        answer=OperationState,
    )
    async def _report(self, _: ConsoleRequest) -> OperationState:
        return await self.reports.current()

    @route("GET /operation", Scope.READ, "The page of the operation.")
    async def _page(self, request: ConsoleRequest) -> Page:
        state = await self.reports.current()
        chart = _queue_chart(self.reports.samples, request.look.language)
        return Page("operation.html", {"state": state, "chart": chart})

    @route(
        "GET /operation/events",
        Scope.READ,
        "The state of the operation whenever it changes, as server-sent events.",
    )
    async def _events(self, request: ConsoleRequest) -> web.StreamResponse:
        async def render() -> str:
            return self._fragment(await self.reports.current(), request)

        response = protected(web.StreamResponse(), "")
        await stream_fragment(request, response, render, self.clock)
        return response

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

    @route(
        "GET /api/v1/operation/errors/{error}",
        Scope.READ,
        "The steps of a message by the id that its author was told.",
        answer=ErrorDetail,
    )
    async def _error(self, request: ConsoleRequest) -> ErrorDetail:
        found = await self.reports.error(request.http.match_info["error"])
        if found is None:
            text = translatable("No process has logged anything about such an error.")
            raise RequestRefused(404, text)
        return found

    @route("GET /operation/errors/{error}", Scope.READ, "The steps of a message that failed.")
    async def _error_page(self, request: ConsoleRequest) -> Page:
        return Page("operation_error.html", {"error": await self._error(request)})

    @route(
        "POST /api/v1/operation/providers/{provider}/try",
        Scope.OPERATE,
        "Try a provider with one short request.",
        answer=TrialResult,
    )
    async def _trial(self, request: ConsoleRequest) -> TrialResult:
        provider = request.http.match_info["provider"]
        if all(one.name != provider for one in self.reports.providers):
            raise RequestRefused(404, translatable("There is no such provider."))
        try:
            answer, works = await self.try_provider(provider), True
        except BackendError as error:
            answer, works = str(error), False
        except UserError as error:
            answer, works = translate(error.text, request.look.language), False
        return TrialResult(provider=provider, works=works, answer=self.mask(answer))

    @route(
        "POST /operation/providers/{provider}/try",
        Scope.OPERATE,
        "Try a provider, and show what it answers.",
    )
    async def _trial_page(self, request: ConsoleRequest) -> Page:
        return Page("operation_trial.html", {"trial": await self._trial(request)})


def _queue_chart(samples: Sequence[QueueSample], language: str) -> dict[str, object]:
    """Return what charts.js draws: one line for each number, live."""
    series = (
        (translatable("Unanswered conversations"), "c-1", [one.conversations for one in samples]),
        (translatable("Being answered"), "c-2", [one.held for one in samples]),
        (translatable("Unsent messages"), "c-3", [one.unsent for one in samples]),
    )
    return {
        "unit": "second",
        "live": True,
        "title": translate(translatable("Time (UTC)"), language),
        "times": [round(one.at) for one in samples],
        "series": [
            {"label": translate(label, language), "color": color, "values": values}
            for label, color, values in series
        ],
    }
