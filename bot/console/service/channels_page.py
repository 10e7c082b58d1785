"""Channels: where somebody was answered, and which settings were made in chats."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.console.operation import KnownChannel, MadeSetting
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    route,
)
from bot.ports import ServiceState
from bot.texts.text import translatable

_MAX_CHANNELS = 500


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
