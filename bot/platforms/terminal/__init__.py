"""Chat in the terminal where Troupe was started; the user can write as several people."""

from bot.platforms.spec import PlatformSpec
from bot.platforms.terminal.local_chat import OWN_COMMANDS

SPEC = PlatformSpec(
    kind="terminal",
    factory="bot.platforms.terminal.platform:create_platform",
    user_id_pattern=".+",
    commands=OWN_COMMANDS,
    uses_terminal=True,
)
