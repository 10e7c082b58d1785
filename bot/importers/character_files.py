"""Presets whose `character` says where their persona and their stories come from.

A new kind of file is a function, and a line in `_READERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bot.errors import CharacterError, PresetError
from bot.prompting.personas.builtin_roles import load_known, name_of
from bot.prompting.personas.haruhi_rows import read_jsonl, read_rows
from bot.prompting.presets.files import load_presets, preset_from
from bot.prompting.presets.preset import Preset


@dataclass(frozen=True, slots=True)
class CharacterFile:
    """What a file says about a character: keys of a preset, and stories."""

    keys: Mapping[str, object]
    stories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PresetWithStories:
    """A preset that is ready to play, with the stories of its character."""

    preset: Preset
    stories: tuple[str, ...] = ()


def load_presets_with_stories(directory: Path) -> dict[str, PresetWithStories]:
    """Read every preset here, with its character; by name.

    Raises:
        PresetError: tells all that is wrong, a line each.
    """
    roles: dict[str, PresetWithStories] = {}
    problems: list[str] = []
    for name, preset in load_presets(directory).items():
        try:
            roles[name] = merge_character_file(preset, directory)
        except PresetError as error:
            problems.append(str(error))
    if problems:
        raise PresetError("\n".join(problems))
    return roles


def load_complete_presets(directory: Path) -> dict[str, Preset]:
    """The presets of `load_presets_with_stories` without their stories."""
    return {name: role.preset for name, role in load_presets_with_stories(directory).items()}


def merge_character_file(preset: Preset, directory: Path) -> PresetWithStories:
    """Add to a preset what its character's file says; its own keys win.

    `character` is a path as seen from the directory of the presets, or a known role's name.
    """
    if preset.character is None:
        return PresetWithStories(preset)
    where = f"preset {preset.name!r}: character {preset.character!r}"
    try:
        file = read_character_file(preset.character, directory)
    except CharacterError as error:
        raise PresetError(f"{where}: {error}") from error
    whole = preset_from({**file.keys, **preset.model_dump(exclude_unset=True)}, where)
    if not whole.role_name:
        raise PresetError(f"{where}: the file does not say who it is; add 'role_name'")
    return PresetWithStories(whole, file.stories)


def read_character_file(reference: str, directory: Path) -> CharacterFile:
    """Raises CharacterError: there is no such file or role, or it cannot be read."""
    file = directory / reference
    if not file.suffix:
        data = load_known(reference)
        keys = {"role_name": name_of(reference), "persona": data.persona}
        return CharacterFile(keys, data.texts)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise CharacterError(f"is no file of a kind that we know: {', '.join(sorted(_READERS))}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CharacterError(f"{file} cannot be read ({error.strerror})") from error
    return reader(content, str(file))


def _haruhi(content: bytes, source: str) -> CharacterFile:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CharacterError(f"{source} is not UTF-8; save it as UTF-8") from error
    data = read_rows(read_jsonl(text), source)
    return CharacterFile({"persona": data.persona}, data.texts)


_READERS: Mapping[str, Callable[[bytes, str], CharacterFile]] = {".jsonl": _haruhi}
