"""Telegram over its Bot API: aiogram carries the calls and the types, the polling is our own."""

from bot.platforms.telegram.platform import TelegramPlatform

__all__ = ["TelegramPlatform"]
