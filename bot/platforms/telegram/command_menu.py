"""Telegram's command list, for each kind of chat and each language."""

from collections.abc import Sequence

import structlog
from aiogram.enums import BotCommandScopeType as Scope
from aiogram.methods import GetMyCommands, SetMyCommands
from aiogram.types import (
    BotCommand,
    BotCommandScopeAllChatAdministrators,
    BotCommandScopeAllGroupChats,
    BotCommandScopeAllPrivateChats,
    BotCommandScopeUnion,
)

from bot.chat.command import CommandSpec
from bot.errors import PlatformError
from bot.platforms.telegram.api import BotApi
from bot.platforms.telegram.limits import plain_text
from bot.texts.text import LANGUAGES, looked_up, translate

_MAX_DESCRIPTION_CHARS = 256

_log = structlog.get_logger(__name__)


async def offer_commands(api: BotApi, commands: Sequence[CommandSpec]) -> None:
    """Register the commands of each scope and language where they differ from Telegram's list."""
    try:
        for scope, offered in commands_by_scope(commands):
            for language in LANGUAGES:
                ours = to_bot_commands(offered, language)
                code = None if language == LANGUAGES[0] else language  # None: all other languages
                if await api.call(GetMyCommands(scope=scope, language_code=code)) != ours:
                    await api.call(SetMyCommands(commands=ours, scope=scope, language_code=code))
    except PlatformError as error:
        _log.warning("telegram_commands_not_offered", reason=str(error))


def commands_by_scope(
    commands: Sequence[CommandSpec],
) -> list[tuple[BotCommandScopeUnion | None, Sequence[CommandSpec]]]:
    """Return the commands for each kind of chat; None stands for all other chats."""
    in_groups = [one for one in commands if not one.is_private]
    for_all = [one for one in in_groups if not one.is_for_admins]
    return [
        (None, for_all),
        (BotCommandScopeAllPrivateChats(type=Scope.ALL_PRIVATE_CHATS), commands),
        (BotCommandScopeAllGroupChats(type=Scope.ALL_GROUP_CHATS), for_all),
        (BotCommandScopeAllChatAdministrators(type=Scope.ALL_CHAT_ADMINISTRATORS), in_groups),
    ]


def to_bot_commands(commands: Sequence[CommandSpec], language: str = "en") -> list[BotCommand]:
    """Return commands for Telegram's menu; descriptions list their actions."""
    offered = []
    for one in commands:
        summary = plain_text(translate(looked_up(one.summary), language))
        if one.actions:
            summary = f"{summary} ({', '.join(action.name for action in one.actions)})"
        offered.append(BotCommand(command=one.name, description=summary[:_MAX_DESCRIPTION_CHARS]))
    return offered
