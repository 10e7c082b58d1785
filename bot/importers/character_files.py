"""Load presets together with the files that their key `character` refers to."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bot.errors import CharacterError, PresetError
from bot.importers.archives import read_haruhi_zip
from bot.importers.file_kinds import FileKind, detect_file_kind
from bot.prompting.haruhi import (
    CharacterData,
    find_builtin_role_name,
    load_builtin_role,
    read_jsonl,
    read_rows,
    with_default_placeholder,
)
from bot.prompting.presets.files import PresetsInFolder, read_presets, validate_preset
from bot.prompting.presets.preset import Preset
from bot.prompting.text.preset_folder import resolve_path_inside
from bot.runtime.plugins import enabled_plugins
from bot.texts.text import error_text, translatable

# Only ChatHaruhi 2 has this column; its personas lack placeholders for stories.
_VERSION_2_COLUMN = "luotuo_openai"
KeysAndStories: TypeAlias = tuple[dict[str, object], tuple[str, ...]]

_HARUHI_TOKEN_BUDGET = {"max_input_tokens": 1600}  # ChatHaruhi's characters were written for it


def read_character_folder(directory: Path) -> PresetsInFolder:
    """Read all presets in a folder with their character files; raise `PresetError`."""
    folder = read_presets(directory, _describe_non_preset)
    for file, name in folder.names.items():
        if file in folder.problems:
            continue
        try:
            folder.presets[name], stories = merge_character_file(folder.presets[name], directory)
        except PresetError as error:
            folder.problems[file] = error_text(error)
            del folder.presets[name]
            continue
        if stories:
            folder.stories[name] = stories
    return folder


def _describe_non_preset(text: str, file: Path) -> str | None:
    kind = detect_file_kind(text.encode())
    if kind in {FileKind.PRESET, FileKind.UNKNOWN}:
        return None
    return translatable(
        "{description}, and move it out of the presets folder", description=kind.describe(file)
    )


def merge_character_file(preset: Preset, directory: Path) -> tuple[Preset, tuple[str, ...]]:
    """Return a preset merged with its character file, and the file's stories.

    The preset's own keys take precedence. Its key `character` is a path relative to the presets
    folder, or the name of a built-in role.
    """
    if preset.character is None:
        return preset, ()
    source = translatable(
        "preset {preset}: character {character}",
        preset=repr(preset.name),
        character=repr(preset.character),
    )
    try:
        keys, stories = read_character_file(preset.character, directory)
    except CharacterError as error:
        raise PresetError(error_text(error.prefixed_with(source))) from error
    merged_preset = validate_preset({**keys, **preset.model_dump(exclude_unset=True)}, source)
    if not merged_preset.role_name:
        raise PresetError.translatable(
            "{source}: the file has no name for the character; add 'role_name'", source=source
        )
    return merged_preset, stories


def read_character_file(character_reference: str, directory: Path) -> KeysAndStories:
    """Return the preset keys and stories of a character file or built-in role.

    Raises `CharacterError`.
    """
    file = directory / character_reference
    if not file.suffix:
        keys, stories = _make_character_file(load_builtin_role(character_reference))
        return {"role_name": find_builtin_role_name(character_reference), **keys}, stories
    if resolve_path_inside(directory, character_reference) is None:
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


def read_character_content(file: Path, content: bytes) -> KeysAndStories:
    """Parse a character file's content by the file's suffix; raise `CharacterError`."""
    reader = _find_reader(file)
    try:
        data = reader(content)
    except (CharacterError, PresetError) as error:
        raise CharacterError(error_text(error.prefixed_with(file))) from error
    # Empty stories cannot be found, and some services refuse to embed them.
    nonempty_texts = tuple(text for text in data.texts if text.strip())
    return _make_character_file(replace(data, texts=nonempty_texts))


def _find_reader(file: Path) -> Callable[[bytes], CharacterData]:
    suffix = file.suffix.lower()
    plugin = enabled_plugins("importers").get(suffix.removeprefix("."))
    reader = partial(_run_plugin, plugin) if plugin else _READERS_BY_SUFFIX.get(suffix)
    if reader is None:
        raise CharacterError.translatable(
            "{suffix} files cannot be read as characters; use {names}",
            suffix=file.suffix,
            names=", ".join(sorted(_READERS_BY_SUFFIX)),
        )
    return reader


def _run_plugin(plugin: Callable[[bytes], CharacterData], content: bytes) -> CharacterData:
    try:
        data = plugin(content)
    except Exception as error:  # noqa: BLE001 # third-party code
        reason = str(error) if isinstance(error, CharacterError) else type(error).__name__
        raise CharacterError.translatable("its plug-in failed: {reason}", reason=reason) from None
    if not isinstance(data, CharacterData):
        raise CharacterError.translatable("its plug-in failed: {reason}", reason=type(data))
    return data


def _read_haruhi_jsonl(content: bytes) -> CharacterData:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CharacterError.translatable("it is not UTF-8; save it as UTF-8") from error
    data = read_rows(read_jsonl(text))
    return with_default_placeholder(data) if data.column == _VERSION_2_COLUMN else data


def _make_character_file(data: CharacterData) -> KeysAndStories:
    return {"persona": data.persona, **_HARUHI_TOKEN_BUDGET}, data.texts


_READERS_BY_SUFFIX: Mapping[str, Callable[[bytes], CharacterData]] = {
    ".jsonl": _read_haruhi_jsonl,
    ".zip": read_haruhi_zip,
}
