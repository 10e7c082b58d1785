"""Read a preset from a file of any kind that we know: RodelAgent's, ollama's, SillyTavern's."""

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from bot.errors import PresetError
from bot.importers.modelfile.conversion import import_notes, parse_modelfile, preset_from_modelfile
from bot.importers.sillytavern import (
    is_context,
    is_instruct,
    preset_from_context,
    preset_from_instruct,
)
from bot.prompting.presets.files import parse_preset, preset_from
from bot.prompting.presets.preset import Preset
from bot.prompting.text.jsonc import JsonSyntaxError, read_json

_JSON_BEGINNINGS = ("{", "//", "/*")
_FROM_LINE = re.compile(r"^[ \t]*from[ \t]+\S", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ImportedPreset:
    """A preset, and what to tell whoever brought its file."""

    preset: Preset
    notes: list[str]  # what the preset says differently from the file, or not at all


def preset_from_text(text: str, file: Path, name: str | None = None) -> ImportedPreset:
    """Tell the kinds apart by what stands in the file, whatever it is called.

    `name` is what to call the preset; without it a JSON preset keeps its own and a Modelfile goes
    by its model. A relative FROM is looked for beside the Modelfile, as ollama does.

    Raises PresetError, or TemplateError for a TEMPLATE that has no equal here.
    """
    if text.lstrip().startswith(_JSON_BEGINNINGS):
        if foreign := _of_sillytavern(text, str(file), name):
            return foreign
        preset = parse_preset(text, str(file))
        if name:
            preset = preset_from({**preset.model_dump(), "name": name}, str(file))
        return ImportedPreset(preset, [])
    if not _FROM_LINE.search(text):
        raise PresetError(
            f"{file} is no preset: it is neither JSON nor a Modelfile with a FROM line"
        )
    try:
        modelfile = parse_modelfile(text)
    except PresetError as error:
        raise PresetError(f"{file}: {error}") from None
    source = next(command.args for command in modelfile.commands if command.name == "model")
    try:
        model, remark = _model(source, file.parent)
    except (OSError, RuntimeError) as error:  # a name that is too long, a stranger's home
        raise PresetError(f"{file}: FROM {source[:80]} cannot be looked for: {error}") from None
    preset = preset_from_modelfile(text, name or _name_of(source), model)
    return ImportedPreset(preset, [*remark, *import_notes(modelfile)])


def _of_sillytavern(text: str, source: str, name: str | None) -> ImportedPreset | None:
    """None if it is no template of SillyTavern's."""
    try:
        data = read_json(text).value
    except JsonSyntaxError:
        return None
    if not isinstance(data, dict) or "provider" in data:
        return None
    if is_instruct(data):
        return ImportedPreset(*preset_from_instruct(data, source, name))
    return ImportedPreset(*preset_from_context(data, source, name)) if is_context(data) else None


def _model(source: str, folder: Path) -> tuple[str, list[str]]:
    """Return the preset's `model` for what stands behind FROM, and what to say about it."""
    if not _is_path(source, folder):
        advice = "bring its GGUF in with `troupe model pull`, or set the provider to ollama"
        return source, [f"FROM {source} is a model of ollama's, not a file: {advice}"]
    path = Path(source).expanduser()
    if not path.is_absolute() and not PureWindowsPath(source).is_absolute():
        path = folder.resolve() / path
    return str(path), [] if path.is_file() else [f"FROM: there is no file {path} yet"]


def _is_path(source: str, folder: Path) -> bool:
    looks_like_one = source.startswith((".", "/", "~")) or source.lower().endswith(".gguf")
    return looks_like_one or (folder / source).is_file()


def _name_of(source: str) -> str:
    """`./Phi-3-mini-4k-instruct-q4.gguf` -> Phi-3-mini-4k-instruct-q4."""
    name = PureWindowsPath(source).name  # it knows both kinds of slashes
    return name.removesuffix(".gguf").replace(":", "-").lstrip(".-~") or "imported"
