"""Load, check, and save the preset files in a folder."""

import difflib
import json
import tempfile
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bot.chat.session import PresetVersion
from bot.errors import PresetError, UserError
from bot.prompting.lorebook.files import LocatedPresetError, read_lorebook
from bot.prompting.presets.fields import Parameters, find_name_problem, preset_id
from bot.prompting.presets.preset import Preset
from bot.prompting.text.jsonc import JsonDocument, JsonSyntaxError, read_json
from bot.prompting.text.preset_folder import (
    is_lorebook,
    list_json_files,
    read_text_file,
    resolve_path_inside,
)
from bot.runtime.shipped_files import prepare_presets_folder
from bot.runtime.validation_errors import describe_validation_error
from bot.texts.text import Text, error_text, join_texts, marked, translatable, translatable_count
from bot.value_class import value_class

_NO_REASONS: Mapping[str, str] = {}


@value_class
class PresetsInFolder:
    """The presets in a folder, and the problems of files that are invalid."""

    presets: dict[str, Preset] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)
    """The name of the preset in each file, or the file's own name if it cannot be read."""
    problems: dict[Path, str] = field(default_factory=dict)
    """Why a file cannot be used, one problem per line."""
    stories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The stories of characters that have any, by preset name."""

    @property
    def disabled_reasons(self) -> dict[str, str]:
        return {self.names[file]: reason for file, reason in self.problems.items()}

    def find(self, preset_name: str) -> Preset:
        return find_preset(self.presets, preset_name, self.disabled_reasons)


def load_presets(directory: Path) -> dict[str, Preset]:
    """Load all presets in a folder, by name; raise `PresetError` if any is invalid."""
    folder_presets = read_presets(directory)
    if folder_presets.problems:
        raise PresetError(join_texts(folder_presets.problems.values()))
    return folder_presets.presets


def read_presets(
    directory: Path, describe_other_file: Callable[[str, Path], str | None] | None = None
) -> PresetsInFolder:
    """Read all presets in a folder; raise `PresetError` if the folder cannot be read.

    Lorebooks are skipped. For a file that is not a preset, `describe_other_file` may return what it
    is instead, or None.
    """
    folder_presets = PresetsInFolder()
    files_by_id: dict[str, Path] = {}
    for file in list_json_files(directory):
        text = ""
        try:
            text = read_text_file(file)
            if is_lorebook(text):  # belongs to a preset in the same folder
                continue
            preset = load_preset_lorebook(parse_preset(text, str(file)), file)
        except PresetError as error:
            folder_presets.names[file] = _find_preset_name(text) or file.stem
            description = describe_other_file and describe_other_file(text, file)
            folder_presets.problems[file] = description or error_text(error)
            continue
        folder_presets.names[file] = preset.name
        if (first_file := files_by_id.setdefault(preset.id, file)) != file:
            folder_presets.problems[file] = translatable(
                "{file}: the name {name} is already taken by {first}; rename one of the two",
                file=file,
                name=repr(preset.name),
                first=first_file,
            )
        else:
            folder_presets.presets[preset.name] = preset
    return folder_presets


def _find_preset_name(file_text: str) -> str | None:
    try:
        value = read_json(file_text).value
    except JsonSyntaxError:
        return None
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and not find_name_problem(name) else None


def parse_preset(text: str, source: str) -> Preset:
    """Parse a preset with comments and trailing commas; raise `PresetError` if it is invalid."""
    result = check_preset(text)
    if result.preset is None:
        problem_texts = (_describe_problem(problem, source) for problem in result.problems)
        raise PresetError(join_texts(problem_texts))
    return result.preset


def _describe_problem(problem: "PresetProblem", source: str) -> Text:
    pattern = marked("{file}, line {line}: {problem}")
    return translatable(pattern, file=source, line=problem.line, problem=problem.text)


def load_preset_lorebook(preset: Preset, file: Path) -> Preset:
    """Return the preset with the content of its lorebook file; raise `PresetError` if invalid."""
    if not isinstance(preset.lorebook, str):
        return preset
    return preset.model_copy(update={"lorebook": read_lorebook_file(preset.lorebook, file)})


def read_lorebook_file(name: str, file: Path) -> object:
    """Return the JSON of a lorebook file in the folder of the preset's `file`.

    Raises `PresetError`.
    """
    folder = file.parent.resolve()
    book_file = resolve_path_inside(folder, name)
    if book_file is None:
        raise PresetError.translatable(
            "{file}: lorebook: {name} is outside {folder}; move it into that folder",
            file=file,
            name=repr(name),
            folder=folder,
        )
    try:
        value = read_json(read_text_file(book_file)).value
    except JsonSyntaxError as error:
        problem = PresetProblem(error.line_number, error.problem)
        raise PresetError(_describe_problem(problem, str(book_file))) from error
    read_lorebook(value, str(book_file))
    return value


def validate_preset(data: object, source: str) -> Preset:
    """Create a preset from parsed JSON; raise `PresetError` with all problems."""
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        problems = list_preset_problems(error, JsonDocument(data))
        pattern = marked("{file}: {problem}")
        lines = [translatable(pattern, file=source, problem=problem.text) for problem in problems]
        raise PresetError(join_texts(lines)) from error


def export_preset(preset: Preset) -> str:
    """Return a preset as strict JSON without default values; text-only contents become strings."""
    data = preset.model_dump(mode="json", exclude_defaults=True)
    for message in data.get("messages", ()):
        match message["content"]:
            case [{"type": "text", "text": text, **other_fields}] if not other_fields:
                message["content"] = text
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def to_version(preset: Preset) -> PresetVersion:
    """Return a version of a preset to store; its number is at least the preset's `version`."""
    return PresetVersion(preset.name, export_preset(preset), preset.version)


def find_preset(
    presets: Mapping[str, Preset],
    preset_name: str,
    disabled_reasons: Mapping[str, str] = _NO_REASONS,
) -> Preset:
    """Find a preset by name, ignoring case; raise `PresetError` if it is missing or disabled."""
    presets_by_id = {preset.id: preset for preset in presets.values()}
    sought_id = preset_id(preset_name.strip())
    if sought_id in presets_by_id:
        return presets_by_id[sought_id]
    for name, reason in disabled_reasons.items():
        if preset_id(name) == sought_id:
            raise PresetError.translatable(
                "the preset {name} is disabled: {reason}", name=name, reason=reason
            )
    if matches := difflib.get_close_matches(sought_id, presets_by_id, n=1):
        closest_name = repr(presets_by_id[matches[0]].name)
        raise PresetError.translatable(
            "no preset {word}; did you mean {near}?", word=repr(preset_name), near=closest_name
        )
    names = ", ".join(sorted(presets))
    raise PresetError.translatable(
        "no preset {word}; available: {names}", word=repr(preset_name), names=names
    )


def open_presets_folder(presets_dir: Path | None) -> Path:
    """Return the folder for new presets; raise `UserError` if it cannot be created."""
    try:
        return prepare_presets_folder(presets_dir)[0]
    except OSError as error:
        raise UserError(f"presets/ cannot be created here: {error.strerror or error}") from None


def find_preset_file(folder: Path, preset: Preset) -> Path:
    """Return the path of a preset's file, which may not exist yet; raise `PresetError`."""
    new_file = folder / f"{preset.id}.json"
    if not folder.is_dir() or not any(folder.glob("*.json")):
        return new_file
    return next((file for file in list_json_files(folder) if _has_preset(file, preset)), new_file)


def write_preset(folder: Path, preset: Preset) -> Path:
    """Write a preset to its file, and return the path; raise `PresetError` or `UserError`."""
    file = find_preset_file(folder, preset)
    write_file_atomically(file, export_preset(preset).encode())
    return file


def delete_preset_file(folder: Path, preset: Preset) -> None:
    """Delete a preset's file if it exists; raise `PresetError` or `UserError`."""
    file = find_preset_file(folder, preset)
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file} cannot be deleted: {error.strerror}") from None


def write_file_atomically(file: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder; raise `UserError` if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
            temporary_file = Path(stream.name)
            stream.write(content)
        temporary_file.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        temporary_file.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def _has_preset(file: Path, sought_preset: Preset) -> bool:
    text = read_text_file(file)
    if is_lorebook(text):
        return False
    try:
        return parse_preset(text, str(file)).id == sought_preset.id
    except PresetError:
        return file.stem == sought_preset.id  # an invalid file is replaced


MAX_PROBLEMS = 100
"""The maximum number of problems to describe; each takes tenths of a millisecond."""

_OBJECT_PROBLEM = translatable("a preset must be one JSON object: {example}", example="{...}")


@value_class
class PresetProblem:
    line: int
    text: str


@value_class
class CheckedPreset:
    preset: Preset | None
    problems: Sequence[PresetProblem] = ()
    document: JsonDocument | None = None
    """The document, or None if the text is not a JSON object."""

    @property
    def value(self) -> dict[str, object] | None:
        """The parsed JSON, even if it has problems; None if it is not an object."""
        value = self.document and self.document.value
        return value if isinstance(value, dict) else None


def check_preset(text: str) -> CheckedPreset:
    """Parse a preset's text and collect all problems, ordered by line."""
    try:
        document = read_json(text)
    except JsonSyntaxError as error:
        return CheckedPreset(None, [PresetProblem(error.line_number, error.problem)])
    if not isinstance(document.value, dict):
        return CheckedPreset(None, [PresetProblem(1, _OBJECT_PROBLEM)])
    try:
        return CheckedPreset(Preset.model_validate(document.value), document=document)
    except ValidationError as error:
        return CheckedPreset(None, list_preset_problems(error, document), document)


def list_preset_problems(error: ValidationError, document: JsonDocument) -> Sequence[PresetProblem]:
    """Describe a document's problems, ordered by line, up to `MAX_PROBLEMS`."""
    errors = [(document.line_at(_find_problem_path(one)), one) for one in error.errors()]
    errors.sort(key=lambda one: one[0])
    problems = [PresetProblem(line, _describe_error(one)) for line, one in errors[:MAX_PROBLEMS]]
    if remaining_errors := errors[MAX_PROBLEMS:]:
        remaining_text = translatable_count(
            "1 more problem", "{count} more problems", len(remaining_errors)
        )
        problems.append(PresetProblem(remaining_errors[0][0], remaining_text))
    return problems


def _describe_error(error: ErrorDetails) -> Text:
    path = error["loc"]
    key = _format_path(path)
    match error["type"]:
        case "extra_forbidden":
            key_suggestion = _suggest_key(path)
            return translatable("unknown key {key}{hint}", key=repr(key), hint=key_suggestion)
        case "missing":
            return translatable("the key {key} is missing", key=repr(key))
        case "value_error":
            reason = describe_validation_error(error)
            return translatable("{key}: {reason}", key=key, reason=reason)
        case _:
            values = {"message": describe_validation_error(error)}
            values |= {"key": key, "given": _format_value(error["input"])}
            return translatable("{key}: {message}, not {given}", **values)


def _find_problem_path(problem: ErrorDetails) -> tuple[str | int, ...]:
    """Return the path to a problem, even inside a value that a single validator checks."""
    error = problem.get("ctx", {}).get("error")
    return (*problem["loc"], *(error.path if isinstance(error, LocatedPresetError) else ()))


def _format_path(path: Iterable[str | int]) -> str:
    """Format a path: `("messages", 0, "role")` becomes `messages[0].role`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _suggest_key(path: tuple[str | int, ...]) -> Text:
    unknown_key = str(path[-1])
    known_keys = _list_keys_at(path[:-1])
    parameters = list(Parameters.__annotations__) if len(path) == 1 else []
    normalized_key = unknown_key.lower().replace("-", "_")
    match difflib.get_close_matches(normalized_key, known_keys + parameters, n=1):
        case [nearest_key] if nearest_key in parameters:
            suggested_line = f"'parameters': {{\"{nearest_key}\": ...}}"
            return translatable("; did you mean {name}?", name=suggested_line)
        case [nearest_key]:
            return translatable("; did you mean {name}?", name=repr(nearest_key))
        case _:
            return translatable("; known keys: {names}", names=", ".join(known_keys))


def _list_keys_at(path: tuple[str | int, ...]) -> list[str]:
    model_class: type[BaseModel] = Preset
    for step in path:
        if isinstance(step, str):
            model_class = _find_model_class(model_class.model_fields[step].annotation)
    return list(model_class.model_fields)


def _find_model_class(annotation: object) -> type[BaseModel]:
    """Return the model class in an annotation, such as `WakeRules` in `WakeRules | None`."""
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        annotation = typing.get_args(annotation)[0]
    return annotation


def _format_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
