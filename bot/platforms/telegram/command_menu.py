"""Register the commands that Telegram shows in each kind of chat and each language."""

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
from bot.texts.text import LANGUAGES, to_translatable, translate

_MAX_DESCRIPTION_CHARS = 256
_GROUP_SCOPES = (BotCommandScopeAllGroupChats, BotCommandScopeAllChatAdministrators)
_log = structlog.get_logger(__name__)


async def register_commands(api: BotApi, commands: Sequence[CommandSpec]) -> None:
    """Register the commands of each scope and language, unless Telegram already has them."""
    try:
        for scope, scope_commands in commands_by_scope(commands):
            for language in LANGUAGES:
                is_group = isinstance(scope, _GROUP_SCOPES)
                menu = to_bot_commands(scope_commands, language, is_group=is_group)
                code = None if language == LANGUAGES[0] else language  # None is the default
                if await api.call(GetMyCommands(scope=scope, language_code=code)) != menu:
                    await api.call(SetMyCommands(commands=menu, scope=scope, language_code=code))
    except PlatformError as error:
        _log.warning("telegram_commands_not_registered", reason=str(error))


def commands_by_scope(
    commands: Sequence[CommandSpec],
) -> list[tuple[BotCommandScopeUnion | None, Sequence[CommandSpec]]]:
    """Return the commands for each kind of chat; the scope None is the default for all chats."""
    commands_for_everyone = [one for one in commands if not one.is_listed_for_admins]
    return [
        (None, [one for one in commands_for_everyone if not one.is_private]),
        (BotCommandScopeAllPrivateChats(type=Scope.ALL_PRIVATE_CHATS), commands),
        (BotCommandScopeAllGroupChats(type=Scope.ALL_GROUP_CHATS), commands_for_everyone),
        (BotCommandScopeAllChatAdministrators(type=Scope.ALL_CHAT_ADMINISTRATORS), commands),
    ]


def to_bot_commands(
    commands: Sequence[CommandSpec], language: str = "en", *, is_group: bool = False
) -> list[BotCommand]:
    """Convert commands for Telegram's menu; their descriptions list their actions.

    In groups, private commands are marked ephemeral: only their author sees them and the responses.
    """
    bot_commands = []
    for one in commands:
        description = plain_text(translate(to_translatable(one.summary), language))
        if one.actions:
            description = f"{description} ({', '.join(action.name for action in one.actions)})"
        bot_command = BotCommand(command=one.name, description=description[:_MAX_DESCRIPTION_CHARS])
        if one.is_private and is_group:
            bot_command = bot_command.model_copy(update={"is_ephemeral": True})
        bot_commands.append(bot_command)
    return bot_commands
