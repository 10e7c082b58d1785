"""The terminal as a platform: a room on a laptop, in which one can be several people."""

from bot.platforms.terminal.lines import read_lines
from bot.platforms.terminal.platform import TerminalPlatform
from bot.platforms.terminal.surface import TerminalSurface

__all__ = ["TerminalPlatform", "TerminalSurface", "read_lines"]
