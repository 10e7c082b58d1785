"""Telegram: aiogram's methods and types, but our own polling loop."""

from bot.platforms.spec import PlatformSpec
from bot.platforms.telegram.settings import TelegramSettings

SPEC = PlatformSpec(
    kind="telegram",
    settings=TelegramSettings,
    factory="bot.platforms.telegram.platform:TelegramPlatform",
    limits="bot.platforms.telegram.limits:GROUP_LIMITS",
    account_setup="bot.platforms.telegram.account:TelegramAccount",
    chat_pattern="-?[1-9][0-9]{0,15}(?::[1-9][0-9]{0,9})?",
)
