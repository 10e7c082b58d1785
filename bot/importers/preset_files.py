"""Import a preset from a file of RodelAgent, ollama or SillyTavern."""

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
from bot.prompting.presets.files import parse_preset, validate_preset
from bot.prompting.presets.preset import Preset
from bot.prompting.text.jsonc import JsonSyntaxError, read_json

_JSON_STARTS = ("{", "//", "/*")
_FROM_LINE = re.compile(r"^[ \t]*from[ \t]+\S", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ImportedPreset:
    """A preset made from a file."""

    preset: Preset
    notes: list[str]
    """What the preset expresses differently than the file, or not at all."""


def preset_from_text(
    text: str, file: Path, name: str | None = None, *, provider: str | None = None
) -> ImportedPreset:
    """Detect the kind of file by its content and convert it to a preset.

    Args:
        text: the content of the file.
        file: its path, for messages; a relative FROM is resolved in its folder, as ollama does.
        name: the name of the preset. Default: the one in the file; for a Modelfile, its model.
        provider: who answers. Default: the file's; for a Modelfile, `ollama` if FROM names a model
            of ollama, else `local`.

    Raises:
        PresetError: the file is invalid; the text names it.
        TemplateError: a TEMPLATE cannot be translated.
    """
    if text.lstrip().startswith(_JSON_STARTS):
        if imported := _from_sillytavern(text, str(file), name):
            return imported
        preset = parse_preset(text, str(file))
        given = {"name": name or preset.name, "provider": provider or preset.provider}
        preset = validate_preset({**preset.model_dump(exclude_unset=True), **given}, str(file))
        return ImportedPreset(preset, [])
    if not _FROM_LINE.search(text):
        raise PresetError(
            f"{file} is not a preset: it is neither JSON nor a Modelfile with a FROM line"
        )
    try:
        modelfile = parse_modelfile(text)
    except PresetError as error:
        raise PresetError(f"{file}: {error}") from None
    source = next(command.args for command in modelfile.commands if command.name == "model")
    try:
        model, found_provider, model_notes = _resolve_model(source, file.parent)
    except (OSError, RuntimeError) as error:  # the name is too long, or ~user does not exist
        raise PresetError(f"{file}: FROM {source[:80]} is not a usable path: {error}") from None
    preset = preset_from_modelfile(
        text, name or _preset_name(source), model, provider=provider or found_provider
    )
    notes = [] if provider and provider != found_provider else model_notes
    return ImportedPreset(preset, [*notes, *import_notes(modelfile)])


def _from_sillytavern(text: str, source: str, name: str | None) -> ImportedPreset | None:
    """Import an instruct or context template; return None for other JSON."""
    try:
        data = read_json(text).value
    except JsonSyntaxError:
        return None
    if not isinstance(data, dict) or "provider" in data:
        return None
    if is_instruct(data):
        return ImportedPreset(*preset_from_instruct(data, source, name))
    return ImportedPreset(*preset_from_context(data, source, name)) if is_context(data) else None


def _resolve_model(source: str, folder: Path) -> tuple[str, str, list[str]]:
    """Return the preset's `model` and `provider` for the argument of FROM, and notes about them."""
    if not _is_path(source, folder):
        note = (
            f"FROM {source} names a model of ollama, so the provider is ollama, at its usual"
            f" address; get the model with `ollama pull {source}`"
        )
        return source, "ollama", [note]
    path = Path(source).expanduser()
    if not path.is_absolute() and not PureWindowsPath(source).is_absolute():
        path = folder.resolve() / path
    notes = []
    if path.is_dir():
        notes = [f"FROM: {path} is a folder; a local model is one GGUF file, so convert it first"]
    elif not path.is_file():
        notes = [f"FROM: the file {path} does not exist yet"]
    return str(path), "local", notes


def _is_path(source: str, folder: Path) -> bool:
    looks_like_path = source.startswith((".", "/", "~", "\\")) or source.lower().endswith(".gguf")
    return looks_like_path or (folder / source).exists() or PureWindowsPath(source).drive != ""


def _preset_name(source: str) -> str:
    """Return `Phi-3-mini-4k-instruct-q4` for `./Phi-3-mini-4k-instruct-q4.gguf`."""
    name = PureWindowsPath(source).name  # splits at both kinds of slashes
    return name.removesuffix(".gguf").replace(":", "-").lstrip(".-~") or "imported"
