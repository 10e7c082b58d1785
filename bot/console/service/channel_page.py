"""One channel: who answers there and why, its people, sessions and budgets; forget and export."""

from urllib.parse import quote

from aiohttp import web

from bot.chat.access import Scope
from bot.chat.session import HistoryScope
from bot.chat.usage import MICROS, format_cost
from bot.console.app import protected
from bot.console.routes import ConsolePart, ConsoleRequest, Page, Route, redirect
from bot.console.service.channel_models import ChannelDetail, ForgottenChannel, PresetChoice
from bot.console.service.channel_report import ChannelReports
from bot.routing.history_scopes import SCOPE_DESCRIPTIONS
from bot.texts.stored import looked_up

_ONE = "/channels/{channel}"


class ChannelPage:
    """Shows and changes one channel."""

    def __init__(self, reports: ChannelReports) -> None:
        self._reports = reports

    @property
    def part(self) -> ConsolePart:
        return ConsolePart((*self._page_routes(), *self._api_routes()))

    def _page_routes(self) -> tuple[Route, ...]:
        operate = Scope.OPERATE
        return (
            Route(
                path=_ONE,
                handler=self._page,
                scope=Scope.READ,
                summary="The page of one channel.",
            ),
            Route(
                path=f"{_ONE}/export",
                handler=self._export,
                scope=Scope.READ,
                summary="Everything that was said in a channel, as JSON.",
            ),
            Route(
                method="POST",
                path=f"{_ONE}/presets",
                handler=self._choose_by_form,
                scope=operate,
                summary="Change which presets answer in a channel, or around it.",
                body=PresetChoice,
            ),
            Route(
                method="POST",
                path=f"{_ONE}/forget",
                handler=self._forget_by_form,
                scope=operate,
                summary="Delete everything that was said in a channel.",
            ),
        )

    def _api_routes(self) -> tuple[Route, ...]:
        api, operate = f"/api/v1{_ONE}", Scope.OPERATE
        return (
            Route(
                path=api,
                handler=self._show,
                scope=Scope.READ,
                summary="One channel: who answers and why, its people, sessions and budgets.",
                answer=ChannelDetail,
            ),
            Route(
                method="POST",
                path=f"{api}/presets",
                handler=self._choose,
                scope=operate,
                summary="Change which presets answer in a channel, or around it.",
                body=PresetChoice,
                answer=ChannelDetail,
            ),
            Route(
                method="DELETE",
                path=api,
                handler=self._forget,
                scope=operate,
                summary="Delete everything that was said in a channel; its worker does it.",
                answer=ForgottenChannel,
            ),
        )

    async def _show(self, request: ConsoleRequest) -> ChannelDetail:
        return await self._reports.find(_channel(request))

    async def _choose(self, request: ConsoleRequest) -> ChannelDetail:
        channel, choice = _channel(request), request.body(PresetChoice)
        await self._reports.choose(channel, choice, request.caller.name)
        return await self._reports.find(channel)

    async def _forget(self, request: ConsoleRequest) -> ForgottenChannel:
        channel = _channel(request)
        await self._reports.forget(channel, request.caller.name)
        return ForgottenChannel(channel=channel)

    async def _page(self, request: ConsoleRequest) -> Page:
        found = await self._show(request)
        return Page(
            "channel.html",
            {
                "found": found,
                "base": f"/channels/{quote(found.channel, safe='')}",
                "presets": sorted(self._reports.resolver.presets, key=str.casefold),
                "history_scope": looked_up(SCOPE_DESCRIPTIONS[HistoryScope(found.history_scope)]),
                "budgets": [
                    (one, _dollars(one.spent), _dollars(one.limit)) for one in found.budgets
                ],
            },
        )

    async def _choose_by_form(self, request: ConsoleRequest) -> web.Response:
        await self._choose(request)
        return redirect(f"/channels/{quote(_channel(request), safe='')}")

    async def _forget_by_form(self, request: ConsoleRequest) -> web.Response:
        await self._forget(request)
        return redirect("/channels")

    async def _export(self, request: ConsoleRequest) -> web.Response:
        text = await self._reports.export(_channel(request), request.caller.name)
        response = web.Response(text=text, content_type="application/json")
        response.headers["Content-Disposition"] = 'attachment; filename="channel.json"'
        return protected(response, "")


def _dollars(amount: float) -> str:
    return format_cost(round(amount * MICROS))


def _channel(request: ConsoleRequest) -> str:
    return request.http.match_info["channel"].replace("\0", "")  # PostgreSQL has none
