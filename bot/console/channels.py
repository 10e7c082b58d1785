"""Channels: who answers there and why, people, sessions, budgets; choose, forget, export."""

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import AuditEntry, Scope
from bot.chat.answers import AnswerSearch
from bot.chat.incoming import ForgetRequested, Incoming, address_of
from bot.chat.operation import KnownChannel, KnownSession, MadeSetting
from bot.chat.session import HistoryScope, Turn
from bot.chat.usage import MICROS, BudgetCap, format_cost
from bot.chat.web_channel import WEB_PLATFORM
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, download, route
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

_MAX_SESSIONS = 50
_MAX_PEOPLE = 200
_MAX_CHANNELS = 500
_OPERATOR = "web:console"
"""Stored as who chose a preset; the audit log names the caller."""
_ONE = "/channels/{channel}"
ScopeKind: TypeAlias = Literal["thread", "channel", "server"]


@value_class
class ChannelList:
    default_preset: str
    channels: Sequence[KnownChannel]
    settings: Sequence[MadeSetting]


@value_class
class ChannelsPage(RouteGroup):
    """Lists channels, and the settings made in chats.

    Args:
        state: what is stored.
        default_preset: what answers where no setting was made.
    """

    navigation = (NavigationItem("/channels", translatable("Channels"), "channels"),)

    state: ServiceState
    default_preset: str

    @route("GET /api/v1/channels", Scope.READ)
    async def list_channels(self) -> ChannelList:
        """List channels, and the settings made in chats."""
        channels = await self.state.channels(_MAX_CHANNELS)
        return ChannelList(self.default_preset, channels, await self.state.chat_settings())

    @route("GET /channels", Scope.READ)
    async def show(self) -> Page:
        return Page("channels.html", {"found": await self.list_channels()})


# --- one channel --------------------------------------------------------------------------------


@value_class
class ScopeRow:
    """A thread, a channel or a server, and which presets were chosen for it."""

    scope: str
    kind: ScopeKind
    presets: Sequence[str]
    """Empty: nobody has chosen any; it is inherited."""
    by: str
    at: float | None
    """In Unix seconds; null: nobody has chosen any."""


@value_class
class PersonRow:
    """Somebody who has spoken in a channel."""

    id: str
    name: str
    label: str
    """What prompts call this person."""


@value_class
class BudgetRow:
    """A budget that answers in a channel count against."""

    kind: str
    period: str
    spent: float
    """In US dollars."""
    limit: float


@value_class
class ChannelDetail:
    """One conversation: who answers, and why; whose history it is, and what it may cost."""

    channel: str
    active: Sequence[str]
    """The presets that answer."""
    active_from: str | None
    """The scope that says so; null: the default."""
    scopes: Sequence[ScopeRow]
    """The narrowest first."""
    history_scope: str
    """Whose messages share one history."""
    history_scope_from: str | None
    observes: bool
    """Whether messages not addressed to the bot are remembered."""
    observes_from: str | None
    people: Sequence[PersonRow]
    sessions: Sequence[KnownSession]
    budgets: Sequence[BudgetRow]


class PresetChoice(BaseModel):
    """What /preset use, add, remove and reset change, in one scope of a channel."""

    scope: str = Field(min_length=1, max_length=300)
    action: Literal["use", "add", "remove", "reset"]
    preset: str = Field("", max_length=500, description="Its name; not needed for reset.")


@value_class
class ForgottenChannel:
    """A conversation that its worker will forget."""

    channel: str


@value_class
class ChannelPage(RouteGroup):
    """Shows one channel, and changes it through what its commands use.

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

    @route(f"GET /api/v1{_ONE}", Scope.READ)
    async def detail(self, channel: str) -> ChannelDetail:
        """One channel: who answers and why, its people, sessions and budgets."""
        scopes = await self._scopes(channel)
        settings = {(one.scope, one.key): one for one in await self.state.chat_settings()}
        active = await self.resolver.resolve(scopes)
        shared_by = await self.history_scopes.setting(scopes)
        observing = await self.resolver.observing_setting(scopes)
        people = await self.histories.people(channel, _MAX_PEOPLE)
        names = self.resolver.character_names(active.names)
        labels = label_speakers(people, names).people
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
            people=[PersonRow(one.id, one.name, labels[one.id]) for one in people],
            sessions=await self.histories.sessions(channel, _MAX_SESSIONS),
            budgets=await self._budgets(scopes, active),
        )

    @route(f"GET {_ONE}", Scope.READ)
    async def show(self, channel: str) -> Page:
        found = await self.detail(channel)
        budgets = [(one, _dollars(one.spent), _dollars(one.limit)) for one in found.budgets]
        return Page(
            "channel.html",
            {
                "found": found,
                "base": f"/channels/{quote(found.channel, safe='')}",
                "presets": sorted(self.resolver.presets, key=str.casefold),
                "history_scope": looked_up(SCOPE_DESCRIPTIONS[HistoryScope(found.history_scope)]),
                "budgets": budgets,
            },
        )

    @route(f"POST /api/v1{_ONE}/presets", Scope.OPERATE)
    @route(f"POST {_ONE}/presets", Scope.OPERATE, then=_ONE)
    async def choose(
        self, request: ConsoleRequest, channel: str, choice: PresetChoice
    ) -> ChannelDetail:
        """Change which presets answer in a channel, or around it."""
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
        names = ("\n".join(one.name for one in active.presets) for active in (before, after))
        await self._record(request, f"preset {choice.action}", choice.scope, *names)
        return await self.detail(channel)

    @route(f"DELETE /api/v1{_ONE}", Scope.OPERATE)
    @route(f"POST {_ONE}/forget", Scope.OPERATE, then="/channels")
    async def forget(self, request: ConsoleRequest, channel: str) -> ForgottenChannel:
        """Have the worker of a channel delete everything that was said there."""
        scopes = await self._scopes(channel)
        event = ForgetRequested(
            address_of(channel), f"console:{secrets.token_hex(8)}", None, self._now(), tuple(scopes)
        )
        await self.receive([event])
        await self._record(request, "forget channel", channel)
        return ForgottenChannel(channel)

    @route(f"GET {_ONE}/export", Scope.READ)
    async def export(self, request: ConsoleRequest, channel: str) -> web.Response:
        """Send everything that was said in a channel as JSON, and note who has read it."""
        scopes = await self._scopes(channel)
        turns = await self.histories.turns(channel)
        await self._record(request, "export channel", channel)
        content = {
            "channel": channel,
            "scopes": list(scopes),
            "exported_at": self._now().isoformat(),
            "messages": [_exported(session, turn) for session, turn in turns],
        }
        text = f"{json.dumps(content, ensure_ascii=False, indent=1)}\n"
        return download(text, "application/json", 'filename="channel.json"')

    async def _record(
        self, request: ConsoleRequest, action: str, subject: str, before: str = "", after: str = ""
    ) -> None:
        who, now = request.caller.name, self.clock.now()
        await self.audit.record(AuditEntry(now, who, action, subject, before, after))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), UTC)

    async def _scopes(self, channel: str) -> Sequence[str]:
        """Return where the settings of a channel are looked up, the narrowest first.

        Raises:
            RequestRefused: 404: nothing was said or answered there.
        """
        if ":" not in channel:  # not the key of a conversation
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
        """Return whether a channel has answers without a text, or belongs to the playground."""
        address = address_of(channel)
        if address.platform == WEB_PLATFORM and await self.web_channels.get(address.chat):
            return True
        known = await self.state.channels(_MAX_CHANNELS)
        return any(one.channel == channel for one in known)

    async def _budgets(self, scopes: Sequence[str], active: ActiveCharacters) -> list[BudgetRow]:
        caps = self.caps(scopes, active.first.preset)
        spent = await self.budgets.spent(caps) if caps else {}
        return [
            BudgetRow(cap.kind, cap.period, spent.get(cap.key, 0) / MICROS, cap.limit / MICROS)
            for cap in caps
        ]


def _kind(at: int, scopes: Sequence[str]) -> ScopeKind:
    if ":guild:" in scopes[at]:
        return "server"
    return "thread" if any(":guild:" not in one for one in scopes[at + 1 :]) else "channel"


def _scope_row(scope: str, kind: ScopeKind, chosen: MadeSetting | None) -> ScopeRow:
    if chosen is None:
        return ScopeRow(scope, kind, [], "", None)
    return ScopeRow(scope, kind, chosen.value.splitlines(), chosen.by, chosen.at)


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


def _dollars(amount: float) -> str:
    return format_cost(round(amount * MICROS))
