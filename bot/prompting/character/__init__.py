"""The `Character` of ChatHaruhi 3.0 as a library: needs no platform, server or database."""

from bot.prompting.character.character import Character

__all__ = ["Character"]
