"""Hear Telegram: poll, store, and only then let it forget, one batch after the other."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

import structlog
from aiogram.enums import ChatMemberStatus
from aiogram.methods import (
    DeleteWebhook,
    GetChatMember,
    GetMe,
    GetMyCommands,
    SetMyCommands,
    TelegramMethod,
)
from aiogram.types import BotCommand, Update, User
from pydantic import ValidationError
from typing_extensions import override

from bot.chat.command import CommandSpec
from bot.chat.incoming import Incoming
from bot.errors import PlatformError, PlatformFatal, RateLimited, Refused, StoreError, TroupeError
from bot.platforms.spec import PlatformContext
from bot.platforms.telegram.api import CALL_SECONDS, AnotherListener, Api
from bot.platforms.telegram.incoming import to_incoming
from bot.platforms.telegram.settings import TelegramSettings
from bot.platforms.telegram.surface import TelegramSurface
from bot.ports import Clock, Intake, Platform, Surface

T = TypeVar("T")

OFFSET = "telegram:offset"  # the cursor: the first update that is not stored yet
_KINDS = ["message"]
_FIRST_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 5.0
_MAX_CONFLICT_PAUSE_SECONDS = 30.0  # two pollers cut each other off: be the more patient one
_MAX_DESCRIPTION = 256  # characters, of a command in Telegram's menu

_log = structlog.get_logger(__name__)


class _GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """aiogram's `GetUpdates` before its typing: an odd update must not hide those beside it."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None
    timeout: int
    allowed_updates: list[str]


def make(settings: TelegramSettings, context: PlatformContext) -> Platform:
    return TelegramPlatform(settings, commands=context.commands, clock=context.clock)


class TelegramPlatform(Platform):
    """One Telegram bot. Close it after the last answer is out."""

    def __init__(
        self, settings: TelegramSettings, *, commands: Sequence[CommandSpec], clock: Clock
    ) -> None:
        self._api = Api(settings)
        self._surface = TelegramSurface(self._api)
        self._poll_seconds = settings.poll_seconds
        self._menu = to_menu(commands)
        self._clock = clock
        self._trouble: str | None = "not connected yet"
        self._displaced = False  # another listener took our place

    @property
    @override
    def name(self) -> str:
        return "telegram"

    @property
    @override
    def surface(self) -> Surface:
        return self._surface

    @property
    @override
    def connection_error(self) -> str | None:
        return self._trouble

    @override
    async def check(self) -> str:
        me = await self._api.call(GetMe())
        return f"@{me.username}, t.me/{me.username}"

    @override
    async def close(self) -> None:
        await self._api.close()

    # --- hearing -----------------------------------------------------------------------------

    @override
    async def run(self, intake: Intake) -> None:
        bot = await self._insist(GetMe)
        await self._insist(lambda: DeleteWebhook(drop_pending_updates=False))
        await self._offer_commands()
        stored = (await intake.cursors(OFFSET)).get(OFFSET)
        offset = None if stored is None else int(stored)
        while True:
            updates = await self._poll(offset)
            if not updates:
                continue
            # After a quiet week Telegram goes on with a lower number: follow, never compare.
            offset = updates[-1]["update_id"] + 1
            await self._store(intake, self._read(updates, bot), offset)

    async def _poll(self, offset: int | None) -> list[dict[str, Any]]:
        """Wait for the next updates; asking with `offset` makes Telegram forget those before."""
        return await self._insist(
            lambda: _GetRawUpdates(offset=offset, timeout=self._patience(), allowed_updates=_KINDS),
            seconds=self._poll_seconds + CALL_SECONDS,
        )

    def _patience(self) -> int:
        """How long to wait for an update; not at all to learn that a trouble is over.

        Somebody who displaced us is only displaced in turn by that, so then wait as usual.
        """
        return self._poll_seconds if self._trouble is None or self._displaced else 0

    def _read(self, updates: Sequence[dict[str, Any]], bot: User) -> list[Incoming]:
        heard = []
        for raw in updates:
            try:
                message = Update.model_validate(raw).message
            except ValidationError as error:
                # The error's text quotes what people wrote: only say where it is.
                fields = [".".join(map(str, one["loc"])) for one in error.errors()]
                _log.error("telegram_update_skipped", update_id=raw["update_id"], fields=fields)
                continue
            incoming = None if message is None else to_incoming(message, bot)
            if incoming is not None:
                heard.append(incoming)
        return heard

    async def _store(self, intake: Intake, heard: Sequence[Incoming], offset: int) -> None:
        for tries in count():
            try:
                await intake.receive(heard, {OFFSET: str(offset)})
            except StoreError as error:
                self._report(f"messages cannot be stored: {error}")
                await self._clock.sleep(_pause_seconds(error, tries))
            else:
                self._report(None)
                return

    async def _insist(self, ask: Callable[[], TelegramMethod[T]], seconds: int = CALL_SECONDS) -> T:
        """Ask until Telegram answers, however long it is away.

        Raises:
            PlatformFatal: it answered that it does not know this bot.
        """
        tries = 0
        while True:
            try:
                answer = await self._api.call(ask(), seconds)
            except PlatformFatal:
                raise
            except Refused as error:  # a token that never was one is "Not Found"
                raise PlatformFatal(
                    f"Telegram does not know this bot ({error}); "
                    "set TROUPE_TELEGRAM__TOKEN to the token that @BotFather shows"
                ) from None
            except PlatformError as error:
                self._report(str(error), displaced=isinstance(error, AnotherListener))
                await self._clock.sleep(_pause_seconds(error, tries))
                tries += 1
            else:
                self._report(None)
                return answer

    def _report(self, trouble: str | None, *, displaced: bool = False) -> None:
        if trouble != self._trouble:
            if trouble is None:
                _log.info("telegram_connected")
            else:
                _log.warning("telegram_trouble", reason=trouble)
        self._trouble, self._displaced = trouble, displaced

    # --- the menu of commands ----------------------------------------------------------------

    async def _offer_commands(self) -> None:
        try:
            if await self._api.call(GetMyCommands()) != self._menu:
                await self._api.call(SetMyCommands(commands=self._menu))
        except PlatformError as error:
            _log.warning("telegram_commands_not_offered", reason=str(error))

    # --- who may change what others see ------------------------------------------------------

    @override
    async def is_admin(self, incoming: Incoming) -> bool:
        if incoming.author_is_admin is not None:
            return incoming.author_is_admin
        chat, user = incoming.address.chat, incoming.author.id.removeprefix("telegram:")
        try:
            member = await self._api.call(GetChatMember(chat_id=int(chat), user_id=int(user)))
        except PlatformError as error:
            _log.warning("telegram_admin_unknown", chat=chat, user=user, reason=str(error))
            return False
        return member.status in {ChatMemberStatus.CREATOR, ChatMemberStatus.ADMINISTRATOR}


def _pause_seconds(error: TroupeError, tries: int) -> float:
    """How long to wait after a failure, longer after each."""
    if isinstance(error, RateLimited):
        return error.retry_after_seconds
    displaced = isinstance(error, AnotherListener)
    longest = _MAX_CONFLICT_PAUSE_SECONDS if displaced else _MAX_PAUSE_SECONDS
    return float(min(_FIRST_PAUSE_SECONDS * 2 ** min(tries, 10), longest))


def to_menu(commands: Sequence[CommandSpec]) -> list[BotCommand]:
    """What Telegram shows when somebody types `/`; actions have no place there but the summary."""
    return [
        BotCommand(command=command.name, description=_described(command)) for command in commands
    ]


def _described(command: CommandSpec) -> str:
    if not command.actions:
        return command.summary[:_MAX_DESCRIPTION]
    actions = ", ".join(action.name for action in command.actions)
    return f"{command.summary} ({actions})"[:_MAX_DESCRIPTION]
