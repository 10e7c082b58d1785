"""The terminal that Troupe was started from; one person can write as several."""

from bot.platforms.spec import PlatformSpec
from bot.platforms.terminal.local_chat import OWN_COMMANDS

SPEC = PlatformSpec(
    kind="terminal",
    factory="bot.platforms.terminal.platform:make",
    user_id_pattern=".+",
    commands=OWN_COMMANDS,
    uses_terminal=True,
)
