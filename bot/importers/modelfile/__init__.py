"""ollama's Modelfiles: parse, format, and convert to and from presets."""

from bot.importers.modelfile.modelfile import modelfile_from_preset, preset_from_modelfile
from bot.importers.modelfile.text import parse_modelfile

__all__ = ["modelfile_from_preset", "parse_modelfile", "preset_from_modelfile"]
