"""Load presets together with the character files that their `character` key refers to.

A new kind of file needs a function and an entry in `_READERS`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from bot.errors import CharacterError, PresetError
from bot.importers.archives import read_haruhi_zip
from bot.importers.file_kinds import FileKind, detect_file_kind
from bot.prompting.haruhi import (
    builtin_role_name,
    load_builtin_role,
    read_jsonl,
    read_rows,
    with_default_placeholder,
)
from bot.prompting.presets.files import ReadPresets, path_inside, read_presets, validate_preset
from bot.prompting.presets.preset import Preset
from bot.texts.text import text_of, translatable
from bot.value_class import value_class

_VERSION_2_COLUMN = "luotuo_openai"  # of ChatHaruhi 2 only; its personas name no place for stories
_HARUHI_BUDGET = {"max_input_tokens": 1600}  # what ChatHaruhi's characters were written for


@value_class
class CharacterFile:
    """The content of a character file."""

    preset_keys: Mapping[str, object]
    """Keys of a preset, such as `persona`."""

    stories: tuple[str, ...] = ()


@value_class
class CharacterFolder:
    """The presets of a folder, merged with their character files."""

    read: ReadPresets
    stories: Mapping[str, tuple[str, ...]]
    """Of the characters that have any, by preset name."""


def read_character_folder(directory: Path) -> CharacterFolder:
    """Read every preset in a directory together with its character file.

    Raises:
        PresetError: the directory cannot be read, or is empty.
    """
    read = read_presets(directory, _describe_other)
    stories: dict[str, tuple[str, ...]] = {}
    for file, name in read.names.items():
        if file in read.problems:
            continue
        try:
            read.presets[name], found = merge_character_file(read.presets[name], directory)
        except PresetError as error:
            read.problems[file] = text_of(error)
            del read.presets[name]
            continue
        if found:
            stories[name] = found
    return CharacterFolder(read, stories)


def _describe_other(text: str, file: Path) -> str | None:
    kind = detect_file_kind(text.encode())
    if kind in {FileKind.PRESET, FileKind.UNKNOWN}:
        return None
    return translatable(
        "{description}, and move it out of the presets folder", description=kind.describe(file)
    )


def read_complete_presets(directory: Path) -> ReadPresets:
    """Read the same presets without their stories."""
    return read_character_folder(directory).read


def merge_character_file(preset: Preset, directory: Path) -> tuple[Preset, tuple[str, ...]]:
    """Return a preset with the content of its character file, and the stories; its own keys win.

    `character` is a path relative to the directory of the presets, or the name of a built-in role.
    """
    if preset.character is None:
        return preset, ()
    source = translatable(
        "preset {preset}: character {character}",
        preset=repr(preset.name),
        character=repr(preset.character),
    )
    try:
        file = read_character_file(preset.character, directory)
    except CharacterError as error:
        raise PresetError.translatable(
            "{file}: {problem}", file=source, problem=text_of(error)
        ) from error
    merged = validate_preset({**file.preset_keys, **preset.model_dump(exclude_unset=True)}, source)
    if not merged.role_name:
        raise PresetError.translatable(
            "{source}: the file has no name for the character; add 'role_name'", source=source
        )
    return merged, file.stories


def read_character_file(reference: str, directory: Path) -> CharacterFile:
    """Read a character file, or a built-in role if `reference` has no file suffix.

    Raises:
        CharacterError: there is no such file or role, or it cannot be read.
    """
    file = directory / reference
    if not file.suffix:
        data = load_builtin_role(reference)
        keys = {
            "role_name": builtin_role_name(reference),
            "persona": data.persona,
            **_HARUHI_BUDGET,
        }
        return CharacterFile(keys, data.texts)
    if path_inside(directory, reference) is None:
        raise CharacterError.translatable(
            "it is outside {directory}; move it into that folder", directory=directory
        )
    _find_reader(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CharacterError.translatable(
            "{file} cannot be read ({reason})", file=file, reason=error.strerror
        ) from error
    return read_character_content(file, content)


def read_character_content(file: Path, content: bytes) -> CharacterFile:
    """Read the content of a character file by its suffix; raises `CharacterError`."""
    return _find_reader(file)(content, str(file))


def _find_reader(file: Path) -> Callable[[bytes, str], CharacterFile]:
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise CharacterError.translatable(
            "{suffix} files cannot be read as characters; use {names}",
            suffix=file.suffix,
            names=", ".join(sorted(_READERS)),
        )
    return reader


def _read_haruhi(content: bytes, source: str) -> CharacterFile:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CharacterError.translatable(
            "{source} is not UTF-8; save it as UTF-8", source=source
        ) from error
    data = read_rows(read_jsonl(text), source)
    if data.column == _VERSION_2_COLUMN:
        data = with_default_placeholder(data)
    # Nothing is similar to an empty story, and some services refuse to embed one.
    stories = tuple(text for text in data.texts if text.strip())
    return CharacterFile({"persona": data.persona, **_HARUHI_BUDGET}, stories)


def _read_haruhi_zip(content: bytes, source: str) -> CharacterFile:
    data = read_haruhi_zip(content, source)
    return CharacterFile({"persona": data.persona, **_HARUHI_BUDGET}, data.texts)


_READERS: Mapping[str, Callable[[bytes, str], CharacterFile]] = {
    ".jsonl": _read_haruhi,
    ".zip": _read_haruhi_zip,
}
