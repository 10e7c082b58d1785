"""Characters as a library, as ChatHaruhi 3.0 describes them: no platform, server or database."""

from bot.prompting.character.character import Character

__all__ = ["Character"]
