"""ollama's Modelfiles: parse, format, and convert from and to presets."""

from bot.importers.modelfile.conversion import modelfile_from_preset, preset_from_modelfile
from bot.importers.modelfile.parser import parse_modelfile

__all__ = ["modelfile_from_preset", "parse_modelfile", "preset_from_modelfile"]
