"""Discord: messages by the gateway, answers by REST, commands as native application commands."""

from bot.platforms.discord.platform import DiscordPlatform

__all__ = ["DiscordPlatform"]
