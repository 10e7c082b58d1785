"""Import presets from files of RodelAgent, Ollama, SillyTavern, KoboldCpp, and LMDeploy."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path, PureWindowsPath
from typing import TypeAlias

from bot.errors import PresetError
from bot.importers.file_kinds import FileKind, detect_file_kind
from bot.importers.instruct_templates import (
    convert_context_template,
    convert_instruct_template,
    convert_koboldcpp_adapter,
    convert_system_prompt,
)
from bot.importers.modelfile import modelfile_notes, parse_modelfile, preset_from_modelfile
from bot.importers.sillytavern_settings import (
    convert_chat_completion_preset,
    convert_sampler_preset,
    ignored_content_notes,
)
from bot.prompting.presets.fields import MAX_NAME_CHARS, STRING_TEMPLATES
from bot.prompting.presets.files import parse_preset, validate_preset
from bot.prompting.presets.preset import DEFAULT_MODEL, Preset
from bot.prompting.text.jsonc import JsonSyntaxError, read_json
from bot.templates.role_template import SAMPLING_KEYS
from bot.value_class import value_class

_KeysAndNotes: TypeAlias = tuple[dict[str, object], list[str]]
_JSON_STARTS = ("{", "[", "//", "/*")
_OLLAMA_BLOB = re.compile(r"sha256[-:][0-9a-f]{64}")
_FROM_COMMENT = re.compile(r"^#\s*FROM\s+(\S+)\s*$", re.MULTILINE)
_KEYS_WITH_MACROS = ("system", "story_string", "post_history_instructions")
_TEMPLATE_KEYS = ("template", "names_in_template")


@value_class
class ImportedPreset:
    preset: Preset
    notes: list[str]
    """Notes on what the preset omits or expresses differently than the file."""


def preset_from_text(
    text: str,
    file: Path,
    name: str | None = None,
    *,
    provider: str | None = None,
    base: Preset | None = None,
) -> ImportedPreset:
    """Convert the text of a file to a preset; raise `PresetError` or `TemplateError` if that fails.

    `name` and `provider` replace those in the file. A preset without a name is named after the file
    or, for a Modelfile, after its model. A preset without a provider gets `local` or, for a
    Modelfile with an Ollama model, `ollama`. With `base`, the file's keys are added to that preset.
    """
    source = str(file)
    is_json = text.lstrip().startswith(_JSON_STARTS)
    keys_and_notes = _convert_foreign_file(text, source) if is_json else None
    if keys_and_notes is None:
        if base is not None:
            if is_json:
                parse_preset(text, source)  # raises if the preset is invalid
            raise PresetError.translatable(
                "{file} is a complete preset; import it without --into", file=file
            )
        convert = _import_preset_json if is_json else _import_modelfile
        return convert(text, file, name, provider)
    keys, notes = keys_and_notes
    if base is not None:
        preset = _add_keys(base, keys, source)
    else:
        overrides = {"name": name or _choose_name(keys, file), "provider": provider or "local"}
        preset = validate_preset({"model": DEFAULT_MODEL, **keys, **overrides}, source)
    return ImportedPreset(preset, [*notes, *ignored_content_notes(preset)])


def _import_preset_json(
    text: str, file: Path, name: str | None, provider: str | None
) -> ImportedPreset:
    preset = parse_preset(text, str(file))
    overrides = {"name": name or preset.name, "provider": provider or preset.provider}
    data = {**preset.model_dump(exclude_unset=True), **overrides}
    return ImportedPreset(validate_preset(data, str(file)), [])


def _import_modelfile(
    text: str, file: Path, name: str | None, provider: str | None
) -> ImportedPreset:
    if detect_file_kind(text.encode()) is not FileKind.MODELFILE:
        raise PresetError.translatable(
            "{file} is not a preset: it is neither JSON nor a Modelfile with a FROM line", file=file
        )
    source = ""
    try:
        modelfile = parse_modelfile(text)
        source = next(command.argument for command in modelfile.commands if command.name == "model")
        model, implied_provider, model_notes = _resolve_model(source, file.parent)
        preset = preset_from_modelfile(
            text, name or _preset_name(source, text), model, provider=provider or implied_provider
        )
    except (OSError, RuntimeError) as error:  # the path is too long, or ~user does not exist
        raise PresetError.translatable(
            "{file}: FROM {source} is not a usable path: {error}",
            file=file,
            source=source[:80],
            error=str(error),
        ) from None
    except PresetError as error:
        raise error.prefixed_with(file) from None
    notes = [] if provider and provider != implied_provider else model_notes
    return ImportedPreset(preset, [*notes, *modelfile_notes(modelfile)])


def _convert_foreign_file(text: str, source: str) -> _KeysAndNotes | None:
    """Return preset keys and notes for a JSON file of another program, or None for other text."""
    try:
        data = read_json(text).value
    except JsonSyntaxError:
        return None
    kind = detect_file_kind(text.encode(errors="surrogatepass"))
    if isinstance(data, list) and kind is FileKind.LOREBOOK:
        data = {"entries": data}
    convert = _CONVERTERS.get(kind)
    if convert is None or not isinstance(data, dict):
        return None
    try:
        keys, notes = convert(data)
    except PresetError as error:
        raise error.prefixed_with(source) from None
    name_in_file = data.get("name")
    return {**keys, **({"name": name_in_file} if isinstance(name_in_file, str) else {})}, notes


def _convert_lmdeploy_template(data: Mapping[str, object]) -> _KeysAndNotes:
    sampling_keys = SAMPLING_KEYS - {"session_len"}
    sampling = {key: one for key, one in data.items() if key in sampling_keys and one is not None}
    role_texts = {key: value for key, value in data.items() if key not in SAMPLING_KEYS}
    name = data.get("model_name")
    keys = {"template": role_texts, "parameters": sampling}
    return keys | ({"name": name} if isinstance(name, str) else {}), []


def _convert_master_export(data: Mapping[str, object]) -> _KeysAndNotes:
    part_converters: tuple[tuple[str, _Converter], ...] = (
        ("instruct", convert_instruct_template),
        ("context", convert_context_template),
        ("sysprompt", convert_system_prompt),
        ("preset", convert_sampler_preset),
    )
    keys: dict[str, object] = {}
    notes: list[str] = []
    for part, convert in part_converters:
        value = data.get(part)
        if isinstance(value, dict):
            part_keys, part_notes = convert(value)
            keys = _merge_keys(keys, part_keys)
            notes += part_notes
    return keys, notes


_Converter: TypeAlias = Callable[[Mapping[str, object]], _KeysAndNotes]
_CONVERTERS: Mapping[FileKind, _Converter] = {
    FileKind.INSTRUCT: convert_instruct_template,
    FileKind.CONTEXT: convert_context_template,
    FileKind.SYSTEM_PROMPT: convert_system_prompt,
    FileKind.SAMPLER: convert_sampler_preset,
    FileKind.CHAT_COMPLETION: convert_chat_completion_preset,
    FileKind.MASTER_EXPORT: _convert_master_export,
    FileKind.KOBOLDCPP_ADAPTER: convert_koboldcpp_adapter,
    FileKind.LMDEPLOY_TEMPLATE: _convert_lmdeploy_template,
    FileKind.LOREBOOK: lambda data: ({"lorebook": dict(data)}, []),
}


def _add_keys(preset: Preset, keys: Mapping[str, object], source: str) -> Preset:
    kept_keys: dict[str, object] = preset.model_dump(include={"name", "provider", "model"})
    if not any(keys.get(key) for key in _KEYS_WITH_MACROS):
        kept_keys["macros"] = preset.macros
    if keys.get("prompts") and not (preset.has_macros or preset.character):
        # In a card, `system` replaces the main prompt. Elsewhere, it describes the character.
        kept_keys["persona"] = "\n\n".join(filter(None, (preset.system, preset.persona))) or None
        kept_keys["system"] = None
    merged_keys = _merge_keys(preset.model_dump(exclude_unset=True), keys)
    return validate_preset({**merged_keys, **kept_keys}, source)


def _merge_keys(old_values: Mapping[str, object], keys: Mapping[str, object]) -> dict[str, object]:
    """Merge new preset keys into the old; parameters merge, but a new template replaces the old."""
    new_keys = {key: value for key, value in keys.items() if value is not None and value != []}
    old_parameters, new_parameters = (
        dict(each) if isinstance(each, Mapping) else {}
        for each in (old_values.get("parameters"), new_keys.pop("parameters", None))
    )
    has_template = "template" in new_keys or any(key in new_parameters for key in STRING_TEMPLATES)
    if has_template:
        old_values = {key: value for key, value in old_values.items() if key not in _TEMPLATE_KEYS}
        for key in STRING_TEMPLATES:
            old_parameters.pop(key, None)
    return {**old_values, **new_keys, "parameters": {**old_parameters, **new_parameters}}


def _choose_name(keys: Mapping[str, object], file: Path) -> str:
    name = keys.get("name")
    return name if isinstance(name, str) and name.strip() else file.stem[:MAX_NAME_CHARS]


def _resolve_model(source: str, folder: Path) -> tuple[str, str, list[str]]:
    """Return a preset's model and provider for a Modelfile's FROM, and notes."""
    if not _is_path(source, folder):
        note = (
            f"FROM {source} is an ollama model, so the provider is ollama, at its usual address;"
            f" download the model with `ollama pull {source}`"
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


def _preset_name(source: str, text: str) -> str:
    """Return a preset name for a FROM argument, such as `Phi-3-q4` for `./Phi-3-q4.gguf`.

    If FROM is one of ollama's own blobs, use the name in the comment that ollama writes.
    """
    name = PureWindowsPath(source).name  # splits at slashes and backslashes
    if _OLLAMA_BLOB.fullmatch(name):
        from_comment = _FROM_COMMENT.search(text)
        name = PureWindowsPath(from_comment[1]).name if from_comment else ""
    return name.removesuffix(".gguf").replace(":", "-").strip().lstrip(".-~") or "imported"
