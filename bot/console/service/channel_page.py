"""One channel: who answers there and why, its people, sessions and budgets; forget and export."""

from urllib.parse import quote

from aiohttp import web

from bot.chat.access import Scope
from bot.chat.session import HistoryScope
from bot.chat.usage import MICROS, format_cost
from bot.console.app import protected
from bot.console.routes import (
    ConsoleRequest,
    Page,
    RouteGroup,
    redirect,
    route,
)
from bot.console.service.channel_models import ChannelDetail, ForgottenChannel, PresetChoice
from bot.console.service.channel_report import ChannelReports
from bot.routing.history_scopes import SCOPE_DESCRIPTIONS
from bot.texts.stored import looked_up

_ONE = "/channels/{channel}"


class ChannelPage(RouteGroup):
    """Shows and changes one channel."""

    def __init__(self, reports: ChannelReports) -> None:
        self._reports = reports

    @route(
        f"GET /api/v1{_ONE}",
        Scope.READ,
        "One channel: who answers and why, its people, sessions and budgets.",
        answer=ChannelDetail,
    )
    async def _show(self, request: ConsoleRequest) -> ChannelDetail:
        return await self._reports.find(_channel(request))

    @route(
        f"POST /api/v1{_ONE}/presets",
        Scope.OPERATE,
        "Change which presets answer in a channel, or around it.",
        body=PresetChoice,
        answer=ChannelDetail,
    )
    async def _choose(self, request: ConsoleRequest) -> ChannelDetail:
        channel, choice = _channel(request), request.body(PresetChoice)
        await self._reports.choose(channel, choice, request.caller.name)
        return await self._reports.find(channel)

    @route(
        f"DELETE /api/v1{_ONE}",
        Scope.OPERATE,
        "Delete everything that was said in a channel; its worker does it.",
        answer=ForgottenChannel,
    )
    async def _forget(self, request: ConsoleRequest) -> ForgottenChannel:
        channel = _channel(request)
        await self._reports.forget(channel, request.caller.name)
        return ForgottenChannel(channel=channel)

    @route(f"GET {_ONE}", Scope.READ, "The page of one channel.")
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

    @route(
        f"POST {_ONE}/presets",
        Scope.OPERATE,
        "Change which presets answer in a channel, or around it.",
        body=PresetChoice,
    )
    async def _choose_by_form(self, request: ConsoleRequest) -> web.Response:
        await self._choose(request)
        return redirect(f"/channels/{quote(_channel(request), safe='')}")

    @route(f"POST {_ONE}/forget", Scope.OPERATE, "Delete everything that was said in a channel.")
    async def _forget_by_form(self, request: ConsoleRequest) -> web.Response:
        await self._forget(request)
        return redirect("/channels")

    @route(f"GET {_ONE}/export", Scope.READ, "Everything that was said in a channel, as JSON.")
    async def _export(self, request: ConsoleRequest) -> web.Response:
        text = await self._reports.export(_channel(request), request.caller.name)
        response = web.Response(text=text, content_type="application/json")
        response.headers["Content-Disposition"] = 'attachment; filename="channel.json"'
        return protected(response, "")


def _dollars(amount: float) -> str:
    return format_cost(round(amount * MICROS))


def _channel(request: ConsoleRequest) -> str:
    return request.http.match_info["channel"].replace("\0", "")  # PostgreSQL has none
