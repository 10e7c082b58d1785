"""Channels: who answers there and why, people, sessions, budgets; choose, forget, export."""

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import AuditEntry, Scope
from bot.chat.answers import AnswerSearch
from bot.chat.incoming import ForgetRequested, Incoming, address_of
from bot.chat.operation import KnownChannel, MadeSetting
from bot.chat.session import HistoryScope, Turn
from bot.chat.usage import MICROS, BudgetCap, format_cost
from bot.chat.web_channel import WEB_PLATFORM
from bot.console.app import protected
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, redirect, route
from bot.errors import RequestRefused
from bot.ports import Clock
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import label_speakers
from bot.routing.presets import SCOPE_DESCRIPTIONS, ActiveCharacters, HistoryScopes, PresetResolver
from bot.storage.operation import AuditLog
from bot.storage.reports import AnswerLog, ChannelHistories, ServiceState
from bot.storage.usage import Budgets
from bot.storage.web_channels import SqlWebChannels
from bot.texts.text import looked_up, translatable
from bot.value_class import value_class


class ScopeRow(BaseModel):
    """A thread, a channel or a server, and which presets were chosen for it."""

    scope: str
    kind: Literal["thread", "channel", "server"]
    presets: list[str] = Field(description="Empty: nobody has chosen any; it is inherited.")
    by: str
    at: float | None = Field(description="In Unix seconds; null: nobody has chosen any.")


class PersonRow(BaseModel):
    """Somebody who has spoken in a channel."""

    id: str
    name: str
    label: str = Field(description="What prompts call this person.")


class SessionRow(BaseModel):
    """What was said between two /new."""

    number: int
    turns: int
    began_at: float = Field(description="In Unix seconds.")
    ended_at: float


class BudgetRow(BaseModel):
    """A budget that answers in a channel count against."""

    kind: str
    period: str
    spent: float = Field(description="In US dollars.")
    limit: float


class ChannelDetail(BaseModel):
    """One conversation: who answers, and why; whose history it is, and what it may cost."""

    channel: str
    active: list[str] = Field(description="The presets that answer.")
    active_from: str | None = Field(description="The scope that says so; null: the default.")
    scopes: list[ScopeRow] = Field(description="The narrowest first.")
    history_scope: str = Field(description="Whose messages share one history.")
    history_scope_from: str | None
    observes: bool = Field(description="Whether what is not said to the bot is remembered.")
    observes_from: str | None
    people: list[PersonRow]
    sessions: list[SessionRow]
    budgets: list[BudgetRow]


class PresetChoice(BaseModel):
    """What /preset use, add, remove and reset change, in one scope of a channel."""

    scope: str = Field(min_length=1, max_length=300)
    action: Literal["use", "add", "remove", "reset"]
    preset: str = Field("", max_length=500, description="Its name; not needed for reset.")


class ForgottenChannel(BaseModel):
    """A conversation that is being forgotten: its worker does that in its turn."""

    channel: str


_MAX_SESSIONS = 50
_MAX_PEOPLE = 200
_MAX_CHANNELS = 500
_OPERATOR = "web:console"
"""Who is noted to have chosen a preset; the audit log says which caller it was."""


@value_class
class ChannelReports:
    """Reads channels, and changes them through what their commands use.

    Args:
        histories: what was said.
        answers: what was answered.
        state: the settings made in chats.
        resolver: which presets answer.
        history_scopes: whose messages share one history.
        budgets: what was spent.
        caps: the budgets of a channel by its scopes, whoever asks.
        web_channels: the channels of the playground.
        receive: takes an event as if a platform had reported it.
        audit: notes who changed what.
        clock: the time.
    """

    histories: ChannelHistories
    answers: AnswerLog
    state: ServiceState
    resolver: PresetResolver
    history_scopes: HistoryScopes
    budgets: Budgets
    caps: Callable[[Sequence[str], Preset], Sequence[BudgetCap]]
    web_channels: SqlWebChannels
    receive: Callable[[Sequence[Incoming]], Awaitable[None]]
    audit: AuditLog
    clock: Clock

    async def find(self, channel: str) -> ChannelDetail:
        """Return a conversation by its key; raises `RequestRefused` with 404 if there is none."""
        scopes = await self._scopes(channel)
        settings = {(one.scope, one.key): one for one in await self.state.chat_settings()}
        active = await self.resolver.resolve(scopes)
        shared_by = await self.history_scopes.setting(scopes)
        observing = await self.resolver.observing_setting(scopes)
        people = await self.histories.people(channel, _MAX_PEOPLE)
        names = self.resolver.character_names(active.names)
        labels = label_speakers(people, names).people
        sessions = await self.histories.sessions(channel, _MAX_SESSIONS)
        return ChannelDetail(
            channel=channel,
            active=[one.name for one in active.presets],
            active_from=active.first.scope,
            scopes=[
                _scope_row(one, _kind(at, scopes), settings.get((one, "preset")))
                for at, one in enumerate(scopes)
            ],
            history_scope=await self.history_scopes.find(scopes) or HistoryScope.SHARED,
            history_scope_from=shared_by.scope if shared_by else None,
            observes=observing is None or observing.value != "off",
            observes_from=observing.scope if observing else None,
            people=[PersonRow(id=one.id, name=one.name, label=labels[one.id]) for one in people],
            sessions=[
                SessionRow(
                    number=one.number,
                    turns=one.turns,
                    began_at=one.began_at,
                    ended_at=one.ended_at,
                )
                for one in sessions
            ],
            budgets=await self._budgets(scopes, active),
        )

    async def choose(self, channel: str, choice: PresetChoice, who: str) -> None:
        """Change which presets answer in a scope of a channel, from the next message on.

        Raises:
            RequestRefused: 404: there is no such channel, or the scope is none of it.
            UserError: there is no such preset, or it cannot be added or removed.
        """
        scopes = await self._scopes(channel)
        if choice.scope not in scopes:
            raise RequestRefused(404, translatable("This scope is not one of this channel."))
        wider = scopes[scopes.index(choice.scope) :]
        before = await self.resolver.resolve(wider)
        match choice.action:
            case "reset":
                await self.resolver.reset(choice.scope, _OPERATOR)
            case "use":
                preset = self.resolver.find(choice.preset)
                await self.resolver.set_active(choice.scope, [preset], _OPERATOR)
            case "add":
                added = before.with_added(self.resolver.find(choice.preset))
                await self.resolver.set_active(choice.scope, added, _OPERATOR)
            case "remove":
                left = before.with_removed(self.resolver.find(choice.preset))
                await self.resolver.set_active(choice.scope, left, _OPERATOR)
        after = await self.resolver.resolve(wider)
        entry = (f"preset {choice.action}", choice.scope, _names(before), _names(after))
        await self.audit.record(AuditEntry(self.clock.now(), who, *entry))

    async def forget(self, channel: str, who: str) -> None:
        """Have everything deleted that was said in a conversation, by its worker in its turn.

        Raises:
            RequestRefused: 404: there is no such channel.
        """
        scopes = await self._scopes(channel)
        now = self.clock.now()
        request = ForgetRequested(
            address_of(channel),
            f"console:{secrets.token_hex(8)}",
            None,
            datetime.fromtimestamp(now, UTC),
            tuple(scopes),
        )
        await self.receive([request])
        await self.audit.record(AuditEntry(now, who, "forget channel", channel))

    async def export(self, channel: str, who: str) -> str:
        """Return everything that was said in a conversation as JSON, and note who has read it.

        Raises:
            RequestRefused: 404: there is no such channel.
        """
        scopes = await self._scopes(channel)
        turns = await self.histories.turns(channel)
        entry = AuditEntry(self.clock.now(), who, "export channel", channel)
        await self.audit.record(entry)
        content = {
            "channel": channel,
            "scopes": list(scopes),
            "exported_at": datetime.fromtimestamp(self.clock.now(), UTC).isoformat(),
            "messages": [_exported(session, turn) for session, turn in turns],
        }
        return f"{json.dumps(content, ensure_ascii=False, indent=1)}\n"

    async def _scopes(self, channel: str) -> Sequence[str]:
        """Return where the settings of a channel are looked up, the narrowest first.

        Raises:
            RequestRefused: 404: nothing was said or answered there.
        """
        if ":" not in channel:  # it is no key of a conversation
            raise RequestRefused(404, translatable("There is no such channel."))
        asked = AnswerSearch(conversation=channel)
        newest = (await self.answers.search(asked, 1)).answers
        if newest and newest[0].receipt.scopes:
            return newest[0].receipt.scopes
        has_texts = newest or await self.histories.sessions(channel, 1)
        if not has_texts and not await self._is_known(channel):
            raise RequestRefused(404, translatable("There is no such channel."))
        address = address_of(channel)
        server = newest[0].receipt.charge.server if newest else None
        return list(dict.fromkeys([address.channel, address.lane, *([server] if server else [])]))

    async def _is_known(self, channel: str) -> bool:
        """Return whether a channel has answers without a text, or is one that pages opened."""
        address = address_of(channel)
        if address.platform == WEB_PLATFORM and await self.web_channels.get(address.chat):
            return True
        known = await self.state.channels(_MAX_CHANNELS)
        return any(one.conversation == channel for one in known)

    async def _budgets(self, scopes: Sequence[str], active: ActiveCharacters) -> list[BudgetRow]:
        caps = self.caps(scopes, active.first.preset)
        spent = await self.budgets.spent(caps) if caps else {}
        return [
            BudgetRow(
                kind=cap.kind,
                period=cap.period,
                spent=spent.get(cap.key, 0) / MICROS,
                limit=cap.limit / MICROS,
            )
            for cap in caps
        ]


def _kind(at: int, scopes: Sequence[str]) -> Literal["thread", "channel", "server"]:
    if ":guild:" in scopes[at]:
        return "server"
    return "thread" if any(":guild:" not in one for one in scopes[at + 1 :]) else "channel"


def _scope_row(
    scope: str, kind: Literal["thread", "channel", "server"], chosen: MadeSetting | None
) -> ScopeRow:
    return ScopeRow(
        scope=scope,
        kind=kind,
        presets=chosen.value.splitlines() if chosen else [],
        by=chosen.by if chosen else "",
        at=chosen.at if chosen else None,
    )


def _exported(session: int, turn: Turn) -> dict[str, object]:
    return {
        "session": session,
        "at": turn.at.isoformat(),
        "role": turn.role,
        "person": turn.speaker.id if turn.speaker else None,
        "name": turn.speaker.name if turn.speaker else None,
        "preset": turn.preset,
        "text": turn.text,
    }


def _names(active: ActiveCharacters) -> str:
    return "\n".join(one.name for one in active.presets)


class ChannelRow(BaseModel):
    """A conversation in which somebody was answered."""

    channel: str
    answers: int
    newest: int = Field(description="The number of its newest answer.")
    newest_at: float = Field(description="In Unix seconds.")
    preset: str | None = Field(description="Which answered last.")


class SettingRow(BaseModel):
    """A setting that somebody made in a chat; it holds for what is inside of its scope."""

    scope: str
    key: str
    value: str
    by: str
    at: float = Field(description="In Unix seconds.")


class ChannelList(BaseModel):
    default_preset: str
    channels: list[ChannelRow]
    settings: list[SettingRow]


class ChannelsPage(RouteGroup):
    """Lists channels and settings.

    Args:
        state: what is stored.
        default_preset: what answers where no setting was made.
    """

    navigation = (NavigationItem("/channels", translatable("Channels"), "channels"),)

    def __init__(self, state: ServiceState, default_preset: str) -> None:
        self._state = state
        self._default_preset = default_preset

    @route(
        "GET /api/v1/channels",
        Scope.READ,
        "List channels, and the settings made in chats.",
        answer=ChannelList,
    )
    async def _list(self, _: ConsoleRequest) -> ChannelList:
        return ChannelList(
            default_preset=self._default_preset,
            channels=_channel_rows(await self._state.channels(_MAX_CHANNELS)),
            settings=_setting_rows(await self._state.chat_settings()),
        )

    @route("GET /channels", Scope.READ, "The page of channels.")
    async def _page(self, request: ConsoleRequest) -> Page:
        return Page("channels.html", {"found": await self._list(request)})


def _channel_rows(channels: Sequence[KnownChannel]) -> list[ChannelRow]:
    return [
        ChannelRow(
            channel=one.conversation,
            answers=one.answers,
            newest=one.newest,
            newest_at=one.newest_at,
            preset=one.preset,
        )
        for one in channels
    ]


def _setting_rows(settings: Sequence[MadeSetting]) -> list[SettingRow]:
    return [
        SettingRow(scope=one.scope, key=one.key, value=one.value, by=one.by, at=one.at)
        for one in settings
    ]


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
