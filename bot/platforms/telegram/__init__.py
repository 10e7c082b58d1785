"""Telegram through its Bot API: aiogram carries the calls and the types, the polling is our own."""

from bot.platforms.spec import PlatformSpec
from bot.platforms.telegram.settings import TelegramSettings

SPEC = PlatformSpec(
    kind="telegram",
    settings=TelegramSettings,
    factory="bot.platforms.telegram.platform:TelegramPlatform",
    limits="bot.platforms.telegram.limits:GROUP",
    account_setup="bot.platforms.telegram.account:TelegramAccount",
)
