"""Load and save a folder's preset files."""

import difflib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from pydantic import ValidationError

from bot.chat.session import PresetVersion
from bot.errors import PresetError, UserError
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.presets.fields import name_problem, preset_id
from bot.prompting.presets.preset import Preset
from bot.prompting.presets.problems import preset_problems
from bot.prompting.text.jsonc import JsonDocument, JsonSyntaxError, read_json
from bot.prompting.text.preset_folder import is_lorebook, json_files, path_inside, read_preset_text
from bot.runtime.shipped_files import writable_presets_folder
from bot.texts.text import joined, marked, text_of, translatable
from bot.value_class import value_class

_NO_REASONS: Mapping[str, str] = {}


@value_class
class ReadPresets:
    """A folder's presets; an invalid file does not affect the others."""

    presets: dict[str, Preset] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)
    """The preset in each file; of a file without a readable name, the file's own name."""
    problems: dict[Path, str] = field(default_factory=dict)
    """Why a file cannot be used, one problem a line."""
    stories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of the characters that have any, by preset name."""

    @property
    def disabled(self) -> dict[str, str]:
        return {self.names[file]: reason for file, reason in self.problems.items()}

    def find(self, word: str) -> Preset:
        return find_preset(self.presets, word, self.disabled)

    def require_all(self) -> None:
        """Raise `PresetError` with all problems, one per line, if there are any."""
        if self.problems:
            raise PresetError(joined(self.problems.values()))


def load_presets(directory: Path) -> dict[str, Preset]:
    """Load all `*.json` files of a folder, by preset name; raises `PresetError`."""
    found = read_presets(directory)
    found.require_all()
    return found.presets


def read_presets(
    directory: Path, describe_other: Callable[[str, Path], str | None] | None = None
) -> ReadPresets:
    """Read all `*.json` files of a presets folder except lorebooks; raises `PresetError`.

    `describe_other` describes a file of another kind; None if it may be a preset.
    """
    found = ReadPresets()
    origins: dict[str, Path] = {}
    for file in json_files(directory):
        text = ""
        try:
            text = read_preset_text(file)
            if is_lorebook(text):  # of a preset beside it
                continue
            preset = load_preset_lorebook(parse_preset(text, str(file)), file)
        except PresetError as error:
            found.names[file] = _name_in(text) or file.stem
            found.problems[file] = (describe_other and describe_other(text, file)) or text_of(error)
            continue
        found.names[file] = preset.name
        if (first := origins.setdefault(preset.id, file)) != file:
            found.problems[file] = translatable(
                "{file}: the name {name} is already taken by {first}; rename one of the two",
                file=file,
                name=repr(preset.name),
                first=first,
            )
        else:
            found.presets[preset.name] = preset
    return found


def _name_in(text: str) -> str | None:
    try:
        value = read_json(text).value
    except JsonSyntaxError:
        return None
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and not name_problem(name) else None


def parse_preset(text: str, source: str) -> Preset:
    """Parse a preset, allowing comments and trailing commas; raises `PresetError`."""
    document = _read_document(text, source)
    if not isinstance(document.value, dict):
        raise PresetError.translatable(
            "{file}: a preset is one JSON object: {example}", file=source, example="{...}"
        )
    return validate_preset(document.value, source, document)


def load_preset_lorebook(preset: Preset, file: Path) -> Preset:
    """Replace a lorebook's path by its content; raises as `read_lorebook_file` does."""
    if not isinstance(preset.lorebook, str):
        return preset
    return preset.model_copy(update={"lorebook": read_lorebook_file(preset.lorebook, file)})


def read_lorebook_file(name: str, file: Path) -> object:
    """Return the JSON of a lorebook next to the preset's `file`; raises `PresetError`."""
    folder = file.parent.resolve()
    book = path_inside(folder, name)
    if book is None:
        raise PresetError.translatable(
            "{file}: lorebook: {name} is outside {folder}; move it into that folder",
            file=file,
            name=repr(name),
            folder=folder,
        )
    value = _read_document(read_preset_text(book), str(book)).value
    read_lorebook(value, str(book))
    return value


def _read_document(text: str, source: str) -> JsonDocument:
    try:
        return read_json(text)
    except JsonSyntaxError as error:
        raise PresetError.translatable(
            "{file}, line {line}: {problem} (column {column})",
            file=source,
            line=error.line,
            column=error.column,
            problem=error.problem,
        ) from error


def validate_preset(data: object, source: str, document: JsonDocument | None = None) -> Preset:
    """Create a preset from data; raises `PresetError` with all problems and their lines."""
    placed, unplaced = marked("{file}, line {line}: {problem}"), marked("{file}: {problem}")
    pattern = placed if document else unplaced
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        problems = preset_problems(error, document or JsonDocument(data))
        lines = [
            translatable(pattern, file=source, line=one.line, problem=one.text) for one in problems
        ]
        raise PresetError(joined(lines)) from error


def export_preset(preset: Preset) -> str:
    """Return strict JSON without default values; single text parts become plain strings."""
    data = preset.model_dump(mode="json", exclude_defaults=True)
    for message in data.get("messages", ()):
        match message["content"]:
            case [{"type": "text", "text": text, **rest}] if not rest:
                message["content"] = text
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def preset_version(preset: Preset) -> PresetVersion:
    """Return a preset's stored form; its own `version` is the lowest number it may get."""
    return PresetVersion(preset.name, export_preset(preset), preset.version)


def find_preset(
    presets: Mapping[str, Preset], word: str, disabled: Mapping[str, str] = _NO_REASONS
) -> Preset:
    """Find a preset by name, ignoring case; raises `PresetError`, with the reason if `disabled`."""
    by_id = {preset.id: preset for preset in presets.values()}
    wanted = preset_id(word.strip())
    if wanted in by_id:
        return by_id[wanted]
    for name, reason in disabled.items():
        if preset_id(name) == wanted:
            raise PresetError.translatable(
                "the preset {name} is disabled: {reason}", name=name, reason=reason
            )
    if found := difflib.get_close_matches(wanted, by_id, n=1):
        near = repr(by_id[found[0]].name)
        raise PresetError.translatable(
            "no preset {word}; did you mean {near}?", word=repr(word), near=near
        )
    names = ", ".join(sorted(presets))
    raise PresetError.translatable(
        "no preset {word}; available: {names}", word=repr(word), names=names
    )


def open_presets_folder(chosen: Path | None) -> Path:
    """Return the folder for new presets; raises `UserError` if it cannot be created."""
    try:
        return writable_presets_folder(chosen)[0]
    except OSError as error:
        raise UserError(f"presets/ cannot be made here: {error.strerror or error}") from None


def find_preset_file(folder: Path, preset: Preset) -> Path:
    """Return the file for a preset, whether or not it exists; raises `PresetError`."""
    own = folder / f"{preset.id}.json"
    if not folder.is_dir() or not any(folder.glob("*.json")):
        return own
    return next((file for file in json_files(folder) if _holds(file, preset)), own)


def write_preset(folder: Path, preset: Preset) -> Path:
    """Write a preset over its old file; raises `PresetError` or `UserError`."""
    file = find_preset_file(folder, preset)
    write_whole_file(file, export_preset(preset).encode())
    return file


def delete_preset_file(folder: Path, preset: Preset) -> None:
    """Delete a preset's file, if it exists; raises `PresetError` or `UserError`."""
    file = find_preset_file(folder, preset)
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file} cannot be deleted: {error.strerror}") from None


def write_whole_file(file: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder; raises `UserError` if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
            written = Path(stream.name)
            stream.write(content)
        written.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        written.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def _holds(file: Path, preset: Preset) -> bool:
    text = read_preset_text(file)
    if is_lorebook(text):
        return False
    try:
        return parse_preset(text, str(file)).id == preset.id
    except PresetError:
        return file.stem == preset.id  # it is replaced by what is valid
