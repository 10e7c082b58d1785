"""Presets: characters and assistants in RodelAgent's JSON form with our additions."""

from bot.prompting.presets.files import load_presets
from bot.prompting.presets.preset import Preset

__all__ = ["Preset", "load_presets"]
