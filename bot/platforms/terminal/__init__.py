"""The terminal that Troupe was started from; one person can write as several."""

from bot.platforms.spec import PlatformSpec

SPEC = PlatformSpec(
    kind="terminal",
    factory="bot.platforms.terminal.platform:make",
    user_id_pattern=".+",
    uses_terminal=True,
)
