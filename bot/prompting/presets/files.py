"""Read presets from files and write them back; what is wrong is named with file and line."""

import difflib
import json
import typing
from collections.abc import Iterable, Mapping
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

__all__ = [
    "Preset",
    "edition",
    "export_preset",
    "find_preset",
    "load_presets",
    "parse_preset",
    "preset_from",
    "with_lorebook",
]


def load_presets(directory: Path) -> dict[str, Preset]:
    """Read every `*.json` here, by name. A PresetError tells all that is wrong, a line each."""
    presets: dict[str, Preset] = {}
    origins: dict[str, Path] = {}
    problems: list[str] = []
    for file in json_files(directory):
        try:
            text = read_preset_text(file)
            if is_lorebook(text):  # that of a preset beside it
                continue
            preset = with_lorebook(parse_preset(text, str(file)), file)
        except PresetError as error:
            problems.append(str(error))
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


def parse_preset(text: str, source: str) -> Preset:
    """Comments and trailing commas pass. Raises PresetError with `source` and the line."""
    try:
        document = read_json(text)
    except JsonSyntaxError as error:
        raise PresetError(f"{source}, line {error.line}: {error}") from error
    if not isinstance(document.value, dict):
        raise PresetError(f"{source}: a preset is one JSON object: {{...}}")
    return preset_from(document.value, source, document)


def with_lorebook(preset: Preset, file: Path) -> Preset:
    """Read in the lorebook that a preset names by its path from the preset's own folder.

    Raises PresetError when there is none, or when the path leads out of that folder.
    """
    if not isinstance(preset.lorebook, str):
        return preset
    folder = file.parent.resolve()
    book = (folder / preset.lorebook).resolve()
    if folder not in book.parents:
        raise PresetError(
            f"{file}: lorebook: {preset.lorebook!r} leads out of {folder}; move it in"
        )
    try:
        document = read_json(read_preset_text(book))
    except JsonSyntaxError as error:
        raise PresetError(f"{book}, line {error.line}: {error}") from error
    read_lorebook(document.value, str(book))
    return preset.model_copy(update={"lorebook": document.value})


def preset_from(data: object, source: str, document: JsonDocument | None = None) -> Preset:
    """Check data that came as JSON or from another format; a document tells the lines."""
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        lines = [_explain(problem, document, source) for problem in error.errors()]
        raise PresetError("\n".join(lines)) from error


def export_preset(preset: Preset) -> str:
    """Strict JSON, without what is at its default, and with plain texts in their short form."""
    data = preset.model_dump(mode="json", exclude_defaults=True)
    for message in data.get("messages", ()):
        match message["content"]:
            case [{"type": "text", "text": text, **rest}] if not rest:
                message["content"] = text
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def edition(preset: Preset) -> PresetVersion:
    """Write it down for the list of its versions; its own `version` is the lowest number."""
    return PresetVersion(preset.name, export_preset(preset), preset.version)


def find_preset(presets: Mapping[str, Preset], word: str) -> Preset:
    """By name in any case. Raises PresetError that tells the nearest name."""
    by_id = {preset.id: preset for preset in presets.values()}
    wanted = preset_id(word.strip())
    if wanted in by_id:
        return by_id[wanted]
    near = difflib.get_close_matches(wanted, by_id, n=1)
    names = ", ".join(sorted(presets))
    hint = f"did you mean {by_id[near[0]].name!r}?" if near else f"there are: {names}"
    raise PresetError(f"no preset {word!r}; {hint}")


def _explain(problem: ErrorDetails, document: JsonDocument | None, source: str) -> str:
    path = problem["loc"]
    where = f"{source}, line {document.line_of(path)}" if document else source
    key = _dotted(path)
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key {key!r}{_nearest(path)}"
        case "missing":
            return f"{where}: the key {key!r} is missing"
        case "value_error":
            return f"{where}: {key}: {problem['msg'].removeprefix('Value error, ')}"
        case "model_type" | "dict_type":
            return f"{where}: {key}: should be an object {{...}}, not {_shown(problem['input'])}"
        case _:
            message = problem["msg"].removeprefix("Input ").removeprefix("String ")
            return f"{where}: {key}: {message}, not {_shown(problem['input'])}"


def _dotted(path: Iterable[str | int]) -> str:
    """("messages", 0, "role") -> messages[0].role."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _nearest(path: tuple[str | int, ...]) -> str:
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
    """Which keys the schema knows in the object at this place."""
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
