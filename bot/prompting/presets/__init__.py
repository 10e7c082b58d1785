"""Load presets: characters and assistants in RodelAgent's JSON format, with extensions."""

from bot.prompting.presets.files import load_presets
from bot.prompting.presets.preset import Preset

__all__ = ["Preset", "load_presets"]
