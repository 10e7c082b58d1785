"""Load and export preset files; errors name the file and the line."""

import difflib
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bot.chat.session import PresetVersion
from bot.errors import PresetError
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.presets.names import preset_id
from bot.prompting.presets.parameters import Parameters
from bot.prompting.presets.preset import Preset
from bot.prompting.text.jsonc import JsonDocument, JsonSyntaxError, read_json
from bot.prompting.text.preset_folder import is_lorebook, json_files, read_preset_text
from bot.runtime.validation_errors import describe_problem
from bot.texts.text import translatable

__all__ = [
    "Preset",
    "export_preset",
    "find_preset",
    "load_preset_lorebook",
    "load_presets",
    "parse_preset",
    "preset_version",
    "validate_preset",
]


def _no_description(_text: str, _file: Path) -> str | None:
    return None


def load_presets(
    directory: Path, describe_other: Callable[[str, Path], str | None] = _no_description
) -> dict[str, Preset]:
    """Load every `*.json` of a directory, by preset name.

    Args:
        directory: the presets folder.
        describe_other: says what a file is that is no preset; None if it may be meant as one.

    Raises:
        PresetError: lists all problems, one per line.
    """
    presets: dict[str, Preset] = {}
    origins: dict[str, Path] = {}
    problems: list[str] = []
    for file in json_files(directory):
        try:
            text = read_preset_text(file)
            if is_lorebook(text):  # of a preset beside it
                continue
            preset = load_preset_lorebook(parse_preset(text, str(file)), file)
        except PresetError as error:
            problems.append(describe_other(_text_or_nothing(file), file) or str(error))
            continue
        if (first := origins.setdefault(preset.id, file)) != file:
            problems.append(
                f"{file}: the name {preset.name!r} is already taken by {first};"
                " rename one of the two"
            )
        presets[preset.name] = preset
    if problems:
        raise PresetError("\n".join(problems))
    return presets


def _text_or_nothing(file: Path) -> str:
    try:
        return read_preset_text(file)
    except PresetError:
        return ""


def parse_preset(text: str, source: str) -> Preset:
    """Parse a preset; comments and trailing commas are allowed.

    Raises:
        PresetError: names `source` and the line.
    """
    try:
        document = read_json(text)
    except JsonSyntaxError as error:
        raise PresetError(f"{source}, line {error.line}: {error}") from error
    if not isinstance(document.value, dict):
        raise PresetError(f"{source}: a preset is one JSON object: {{...}}")
    return validate_preset(document.value, source, document)


def load_preset_lorebook(preset: Preset, file: Path) -> Preset:
    """Replace the path of a lorebook, relative to the preset's folder, by the lorebook itself.

    Raises:
        PresetError: the file cannot be read, or the path leads out of the folder.
    """
    if not isinstance(preset.lorebook, str):
        return preset
    folder = file.parent.resolve()
    book = (folder / preset.lorebook).resolve()
    if folder not in book.parents:
        raise PresetError(
            f"{file}: lorebook: {preset.lorebook!r} is outside {folder}; move it into that folder"
        )
    try:
        document = read_json(read_preset_text(book))
    except JsonSyntaxError as error:
        raise PresetError(f"{book}, line {error.line}: {error}") from error
    read_lorebook(document.value, str(book))
    return preset.model_copy(update={"lorebook": document.value})


def validate_preset(data: object, source: str, document: JsonDocument | None = None) -> Preset:
    """Make a preset of data; `document` supplies the line numbers for errors.

    Raises:
        PresetError: lists all problems, one per line.
    """
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        lines = [_explain(problem, document, source) for problem in error.errors()]
        raise PresetError("\n".join(lines)) from error


def export_preset(preset: Preset) -> str:
    """Return strict JSON, without default values, and with plain texts in their short form."""
    data = preset.model_dump(mode="json", exclude_defaults=True)
    for message in data.get("messages", ()):
        match message["content"]:
            case [{"type": "text", "text": text, **rest}] if not rest:
                message["content"] = text
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def preset_version(preset: Preset) -> PresetVersion:
    """Return the stored form of a preset; its own `version` is the lowest number it may get."""
    return PresetVersion(preset.name, export_preset(preset), preset.version)


def find_preset(presets: Mapping[str, Preset], word: str) -> Preset:
    """Look a preset up by name, in any case.

    Raises:
        PresetError: there is none; the message suggests the nearest name.
    """
    by_id = {preset.id: preset for preset in presets.values()}
    wanted = preset_id(word.strip())
    if wanted in by_id:
        return by_id[wanted]
    near = difflib.get_close_matches(wanted, by_id, n=1)
    if near:
        raise PresetError(
            translatable(
                "no preset {word}; did you mean {near}?",
                word=repr(word),
                near=repr(by_id[near[0]].name),
            )
        )
    names = ", ".join(sorted(presets))
    raise PresetError(
        translatable("no preset {word}; available: {names}", word=repr(word), names=names)
    )


def _explain(problem: ErrorDetails, document: JsonDocument | None, source: str) -> str:
    path = problem["loc"]
    where = f"{source}, line {document.line_of(path)}" if document else source
    key = _dotted(path)
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key {key!r}{_nearest_name(path)}"
        case "missing":
            return f"{where}: the key {key!r} is missing"
        case "value_error":
            return f"{where}: {key}: {problem['msg'].removeprefix('Value error, ')}"
        case _:
            message = describe_problem(problem)
            return f"{where}: {key}: {message}, not {_shown(problem['input'])}"


def _dotted(path: Iterable[str | int]) -> str:
    """("messages", 0, "role") -> messages[0].role."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _nearest_name(path: tuple[str | int, ...]) -> str:
    unknown = str(path[-1])
    known = _keys_at(path[:-1])
    parameters = list(Parameters.__annotations__) if len(path) == 1 else []
    wanted = unknown.lower().replace("-", "_")
    match difflib.get_close_matches(wanted, known + parameters, n=1):
        case [near] if near in parameters:
            return f"; did you mean 'parameters': {{\"{near}\": ...}}?"
        case [near]:
            return f"; did you mean {near!r}?"
        case _:
            return f"; known keys: {', '.join(known)}"


def _keys_at(path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the schema allows in the object at this path."""
    model: type[BaseModel] = Preset
    for step in path:
        if isinstance(step, str):
            model = _model_in(model.model_fields[step].annotation)
    return list(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel]:
    """tuple[Wake, ...] -> Wake."""
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        annotation = typing.get_args(annotation)[0]
    return annotation


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
