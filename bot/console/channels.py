"""Pages about channels: who answers there, people, sessions, budgets, and what can be changed."""

import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from aiohttp import web
from pydantic import Field

from bot.chat.access import ApiScope
from bot.chat.answers import AnswerSearch
from bot.chat.incoming import ForgetRequest, Incoming, SayRequest, parse_address
from bot.chat.operation import AnsweredChat, KnownSession, StoredChatSetting
from bot.chat.rate import Rate
from bot.chat.session import ACCESS_KEY_PREFIX, CHANNEL_TITLE_KEY, HistoryScope
from bot.chat.usage import MICROS_PER_DOLLAR, BudgetCap
from bot.chat.web_channel import WEB_PLATFORM
from bot.console.operator_requests import OPERATOR
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    RouteGroup,
    Values,
    make_file_response,
    route,
)
from bot.errors import RequestRefused
from bot.ports import Clock, RateLimits
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import label_speakers
from bot.routing.presets import SCOPE_DESCRIPTIONS, ActiveCharacters, HistoryScopes, PresetResolver
from bot.storage.operation import AuditLog
from bot.storage.reports import AnswerLog, ServiceState
from bot.storage.usage import Budgets
from bot.storage.web_channels import SqlWebChannels
from bot.texts.text import translatable
from bot.value_class import value_class

_MAX_MESSAGES_PER_MINUTE = 60
_MAX_SESSIONS = 50
_MAX_PEOPLE = 200
_MAX_CHANNELS = 500
_CHANNEL_PATH = "/channels/{channel}"
_CHANNEL_PATTERN = r"^\w+(?:@\w+)?:[^\s#\x00]+$"
_RULE_PATTERN = r"^(?:off|(?:person|role|channel) [a-z]+(?:@\w+)?:-?\d+)$"
_Row = Mapping[str, object]


@value_class
class ChannelsPage(RouteGroup):
    navigation = (NavigationItem("/channels", translatable("Channels"), "channels"),)

    state: ServiceState
    default_preset: str

    @route("GET /api/v1/channels", ApiScope.READ)
    @route("GET /channels", ApiScope.READ, template="channels.html")
    async def list_channels(self) -> Mapping[str, str | Sequence[AnsweredChat | StoredChatSetting]]:
        """List channels, and the settings made in chats."""
        settings = await self.state.chat_settings()
        return {
            "default_preset": self.default_preset,
            "channels": await self.state.channels(_MAX_CHANNELS),
            "settings": [one for one in settings if one.key != CHANNEL_TITLE_KEY],
        }


@value_class
class ChannelDetail:
    """A channel: who answers and why, who shares its history, and its budgets."""

    channel: str
    active: Sequence[str]
    active_from: str | None
    """The scope in which the active presets were chosen; null if they are the default."""
    scopes: Sequence[_Row]
    """The presets chosen in each scope, narrowest scope first.

    Rows: scope, kind (thread, channel or server), presets (empty: inherited), by whom, Unix time.
    """
    history_scope: str
    """Whose messages share one history: a value of `HistoryScope`."""
    history_scope_from: str | None
    observes: bool
    """Whether messages not addressed to the bot are remembered."""
    observes_from: str | None
    access: Sequence[_Row]
    """Rules on who may use the bot: scope, rule ("person telegram:7", "off"), value, by whom."""
    people: Sequence[_Row]
    """Who has spoken there: id, name, and the label in prompts."""
    sessions: Sequence[KnownSession]
    budgets: Sequence[_Row]
    """Budgets that limit answers there: kind, period, and spent and limit in US dollars."""


@value_class
class ChannelPage(RouteGroup):
    answers: AnswerLog
    state: ServiceState
    resolver: PresetResolver
    history_scopes: HistoryScopes
    budgets: Budgets
    find_caps: Callable[[Sequence[str], Preset], Sequence[BudgetCap]]
    """Takes a channel's scopes and a preset; returns the budgets that apply to everybody there."""
    web_channels: SqlWebChannels
    receive: Callable[[Sequence[Incoming]], Awaitable[None]]
    chat_patterns: Mapping[str, str]
    """For each bot that runs here, by `Address.source`, a regular expression for its chat ids."""
    audit_log: AuditLog
    rate_limits: RateLimits
    clock: Clock

    @route(f"GET /api/v1{_CHANNEL_PATH}", ApiScope.READ)
    async def get_detail(self, channel: str) -> ChannelDetail:
        """Get a channel: who answers and why, its people, sessions and budgets."""
        scopes = await self._find_scopes(channel)
        settings = {(one.scope, one.key): one for one in await self.state.chat_settings()}
        active = await self.resolver.resolve(scopes)
        history_setting = await self.history_scopes.find_history_scope_setting(scopes)
        observing_setting = await self.resolver.find_observing_setting(scopes)
        people = await self.state.people(channel, _MAX_PEOPLE)
        labels = label_speakers(people, self.resolver.character_names(active.names)).people
        return ChannelDetail(
            channel=channel,
            active=[one.name for one in active.presets],
            active_from=active.first.scope,
            scopes=[
                _to_scope_row(at, scopes, settings.get((one, "preset")))
                for at, one in enumerate(scopes)
            ],
            history_scope=await self.history_scopes.find(scopes) or HistoryScope.SHARED,
            history_scope_from=history_setting.scope if history_setting else None,
            observes=observing_setting is None or observing_setting.value != "off",
            observes_from=observing_setting.scope if observing_setting else None,
            access=[
                {
                    "scope": scope,
                    "rule": key.removeprefix(ACCESS_KEY_PREFIX),
                    "value": one.value,
                    "by": one.by,
                }
                for (scope, key), one in settings.items()
                if key.startswith(ACCESS_KEY_PREFIX) and scope in scopes
            ],
            people=[{"id": one.id, "name": one.name, "label": labels[one.id]} for one in people],
            sessions=await self.state.sessions(channel, _MAX_SESSIONS),
            budgets=await self._list_budgets(scopes, active),
        )

    @route(f"GET {_CHANNEL_PATH}", ApiScope.READ, template="channel.html")
    async def show(self, channel: str) -> Values:
        detail = await self.get_detail(channel)
        return {
            "found": detail,
            "base": f"/channels/{quote(detail.channel, safe='')}",
            "presets": sorted(self.resolver.presets, key=str.casefold),
            "history_scope": SCOPE_DESCRIPTIONS[HistoryScope(detail.history_scope)],
        }

    @route(f"POST /api/v1{_CHANNEL_PATH}/presets", ApiScope.OPERATE)
    @route(f"POST {_CHANNEL_PATH}/presets", ApiScope.OPERATE, redirect=_CHANNEL_PATH)
    async def choose_presets(
        self,
        request: ConsoleRequest,
        channel: str,
        scope: Annotated[str, Field(min_length=1, max_length=300)],
        action: Literal["use", "add", "remove", "reset"],
        preset: Annotated[
            str, Field(max_length=500, description="A preset's name; not needed for reset.")
        ] = "",
    ) -> ChannelDetail:
        """Change which presets answer in a channel or a wider scope, like /preset."""
        scopes = await self._find_scopes(channel)
        if scope not in scopes:
            raise RequestRefused(404, translatable("This scope does not belong to this channel."))
        wider_scopes = scopes[scopes.index(scope) :]
        old_roster = await self.resolver.resolve(wider_scopes)
        presets = [] if action == "reset" else [self.resolver.find(preset)]
        change_methods = {"add": old_roster.presets_with, "remove": old_roster.presets_without}
        presets = change_methods[action](*presets) if action in change_methods else presets
        await self.resolver.set_active_presets(scope, presets, OPERATOR.id)
        new_roster = await self.resolver.resolve(wider_scopes)
        names = ("\n".join(one.name for one in each.presets) for each in (old_roster, new_roster))
        await self.audit_log.record(request.caller.name, f"preset {action}", scope, *names)
        return await self.get_detail(channel)

    @route(f"POST /api/v1{_CHANNEL_PATH}/access", ApiScope.OPERATE)
    @route(f"POST {_CHANNEL_PATH}/access", ApiScope.OPERATE, redirect=_CHANNEL_PATH)
    async def set_access(
        self,
        request: ConsoleRequest,
        channel: str,
        scope: Annotated[str, Field(min_length=1, max_length=300)],
        action: Literal["allow", "block", "reset"],
        rule: Annotated[str, Field(max_length=100, pattern=_RULE_PATTERN)] = "off",
    ) -> ChannelDetail:
        """Allow or block a person, role or channel, like /access; the rule "off" stops the bot."""
        if scope not in await self._find_scopes(channel):
            raise RequestRefused(404, translatable("This scope does not belong to this channel."))
        enables_bot = (rule, action) == ("off", "allow")
        rule_value = None if action == "reset" or enables_bot else "on" if rule == "off" else action
        settings, name = self.history_scopes.chat_settings, request.caller.name
        await settings.set(scope, f"{ACCESS_KEY_PREFIX}{rule}", rule_value, name, is_audited=True)
        return await self.get_detail(channel)

    @route(f"DELETE /api/v1{_CHANNEL_PATH}", ApiScope.OPERATE)
    @route(f"POST {_CHANNEL_PATH}/forget", ApiScope.OPERATE, redirect="/channels")
    async def forget(self, request: ConsoleRequest, channel: str) -> Mapping[str, str]:
        """Ask the channel's worker to delete all messages of the channel."""
        scopes, address = await self._find_scopes(channel), parse_address(channel)
        external_key = f"console:{secrets.token_hex(8)}"
        deletion = ForgetRequest(address, external_key, None, self.clock.utc_now(), tuple(scopes))
        await self.receive([deletion])
        await self.audit_log.record(request.caller.name, "forget channel", channel)
        return {"channel": channel}

    @route("POST /api/v1/say", ApiScope.SAY)
    async def say(
        self,
        request: ConsoleRequest,
        channel: Annotated[str, Field(max_length=300, pattern=_CHANNEL_PATTERN)],
        text: Annotated[str, Field(max_length=20_000, pattern=r"\S", description="In Markdown.")],
        key: Annotated[str, Field(max_length=100, description="An idempotency key.")] = "",
    ) -> Mapping[str, str]:
        """Say something in a channel, as the character that answers there.

        If a request got no response, repeat it with the same key: for a few days, the same token,
        channel and key send only one message.
        """
        say_rate = Rate(f"say {request.caller.name}", _MAX_MESSAGES_PER_MINUTE, 60)
        if await self.rate_limits.take([say_rate]) > 0:
            raise RequestRefused(429, translatable("Too many messages; try again in a minute."))
        allowed_channels, key = request.caller.channels, key or secrets.token_hex(8)
        if allowed_channels and channel not in allowed_channels:
            text = translatable("This token is not allowed to speak in this channel.")
            raise RequestRefused(403, text)
        source, _, chat_id = channel.partition(":")
        chat_pattern = self.chat_patterns.get(source) if channel in allowed_channels else None
        is_chat = chat_pattern is not None and re.fullmatch(chat_pattern, chat_id) is not None
        scopes, address = await self._find_scopes(channel, exists=is_chat), parse_address(channel)
        name = f"say:{request.caller.name}:{channel}:{key}"
        external_key = f"say:{hashlib.sha256(name.encode()).hexdigest()}"
        message = SayRequest(address, external_key, text, self.clock.utc_now(), tuple(scopes))
        await self.receive([message])
        await self.audit_log.record(request.caller.name, "say", channel)
        return {"channel": channel, "key": key}

    @route(f"GET {_CHANNEL_PATH}/export", ApiScope.READ)
    async def export(self, request: ConsoleRequest, channel: str) -> web.Response:
        """Send all messages of a channel as JSON, and record who exported them."""
        scopes = await self._find_scopes(channel)
        turns = await self.state.turns(channel)
        await self.audit_log.record(request.caller.name, "export channel", channel)
        content = {
            "channel": channel,
            "scopes": list(scopes),
            "exported_at": self.clock.utc_now().isoformat(),
            "messages": [
                {
                    "session": session,
                    "at": one.at.isoformat(),
                    "role": one.role,
                    "person": one.speaker.id if one.speaker else None,
                    "name": one.speaker.name if one.speaker else None,
                    "preset": one.preset,
                    "text": one.text,
                }
                for session, one in turns
            ],
        }
        text = f"{json.dumps(content, ensure_ascii=False, indent=1)}\n"
        return make_file_response(text, "application/json", 'filename="channel.json"')

    async def _find_scopes(self, channel: str, *, exists: bool = False) -> Sequence[str]:
        """Return the scopes to search for a channel's settings, narrowest first."""
        if ":" not in channel:  # not the key of a conversation
            raise RequestRefused(404, translatable("There is no such channel."))
        answer_search = AnswerSearch(conversation=channel)
        newest_answers = (await self.answers.search(answer_search, 1)).answers
        if newest_answers and newest_answers[0].receipt.scopes:
            return newest_answers[0].receipt.scopes
        has_history = newest_answers or await self.state.sessions(channel, 1)
        if not (exists or has_history or await self._is_known_channel(channel)):
            raise RequestRefused(404, translatable("There is no such channel."))
        address = parse_address(channel)
        server = newest_answers[0].receipt.charge.server if newest_answers else None
        return list(dict.fromkeys([address.channel, address.lane, *([server] if server else [])]))

    async def _is_known_channel(self, channel: str) -> bool:
        """Return whether a channel has answers (even deleted ones) or belongs to the playground."""
        address = parse_address(channel)
        if address.platform == WEB_PLATFORM and await self.web_channels.get(address.chat):
            return True
        return channel in {one.channel for one in await self.state.channels(_MAX_CHANNELS)}

    async def _list_budgets(self, scopes: Sequence[str], active: ActiveCharacters) -> list[_Row]:
        budget_caps = self.find_caps(scopes, active.first.preset)
        spent_by_key = await self.budgets.load_spent_amounts(budget_caps) if budget_caps else {}
        return [
            {
                "kind": cap.kind,
                "period": cap.period,
                "spent": spent_by_key.get(cap.key, 0) / MICROS_PER_DOLLAR,
                "limit": cap.limit / MICROS_PER_DOLLAR,
            }
            for cap in budget_caps
        ]


def _to_scope_row(index: int, scopes: Sequence[str], choice: StoredChatSetting | None) -> _Row:
    if ":guild:" in scopes[index]:
        kind = "server"
    else:
        kind = "thread" if any(":guild:" not in one for one in scopes[index + 1 :]) else "channel"
    return {
        "scope": scopes[index],
        "kind": kind,
        # A line is a preset's name; for a chat's own character, a tab and a behavior preset follow.
        "presets": [one.partition("\t")[0] for one in choice.value.splitlines()] if choice else [],
        "by": choice.by if choice else "",
        "at": choice.at if choice else None,
    }
