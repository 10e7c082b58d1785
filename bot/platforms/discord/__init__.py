"""Discord: receive from the gateway, send with the REST API, register application commands."""

from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.spec import PlatformSpec

SPEC = PlatformSpec(
    kind="discord",
    settings=DiscordSettings,
    factory="bot.platforms.discord.platform:DiscordPlatform",
    limits="bot.platforms.discord.surface:DISCORD_LIMITS",
    account_setup="bot.platforms.discord.account:DiscordAccount",
    chat_pattern="[1-9][0-9]{0,19}",
)
