"""Detect a file's kind and the command that accepts it.

Only the file's structure is checked; importers report errors in its contents.
"""

import io
import json
import re
import tomllib
import zipfile
from collections.abc import Collection, Set
from enum import Enum
from pathlib import Path
from typing import Final

from bot.errors import UserError
from bot.importers import png
from bot.prompting.text.jsonc import JsonSyntaxError, read_json
from bot.texts.text import Text, marked, translatable

MAX_BYTES_READ: Final = 4 * 2**20
"""The number of bytes that are read from a file to detect its kind."""

_HARUHI_PATH = re.compile(r"(^|/)system_prompt\.txt$|(^|/)(content|texts)/[^/]+\.txt$|\.jsonl$")
_FROM_LINE = re.compile(r"^[ \t]*from[ \t]+\S", re.IGNORECASE | re.MULTILINE)
_JSON_START = re.compile(r"\{\s*[\"}/]|\[\s*[\[{\"\]]")
_YAML_KEY = re.compile(r"^([A-Za-z_]\w*):(?: .*)?$", re.MULTILINE)
_YAML_START = re.compile(r"\A(?:(?:---[ \t]*|#.*|[ \t]*)\r?\n)+")
_JINJA_TAG = re.compile(r"\{%[-+]?\s*\w")
_JINJA_VALUE = re.compile(r"\{\{-?\s*[\w'\"(]")

_IDENTIFYING_KEYS = tomllib.loads((Path(__file__).parent / "file_kinds.toml").read_text("utf-8"))
_PRESET_ADVICE = marked("import it as a preset with `troupe preset import {file}`")
_UNUSABLE_ADVICE = marked("Troupe cannot use it")
_CHARACTER_ADVICE = marked("import it as a preset with `troupe character import {file}`")


class FileKind(Enum):
    """A kind of file, with what to do with it; `{file}` is the file's path, `{name}` its name."""

    PRESET = (marked("a preset"), marked("add it with `troupe preset import {file}`"))
    INSTRUCT = (marked("a SillyTavern instruct template"), _PRESET_ADVICE)
    CONTEXT = (marked("a SillyTavern context template"), _PRESET_ADVICE)
    SYSTEM_PROMPT = (marked("a SillyTavern system prompt"), _PRESET_ADVICE)
    SAMPLER = (marked("a SillyTavern text completion (sampler) preset"), _PRESET_ADVICE)
    CHAT_COMPLETION = (marked("a SillyTavern chat completion preset"), _PRESET_ADVICE)
    MASTER_EXPORT = (marked("a SillyTavern master export"), _PRESET_ADVICE)
    REASONING = (
        marked("a SillyTavern reasoning template"),
        marked("Troupe does not need it, because it detects reasoning tags itself"),
    )
    KOBOLDCPP_ADAPTER = (marked("a koboldcpp chat adapter"), _PRESET_ADVICE)
    MODELFILE = (marked("a Modelfile"), _PRESET_ADVICE)
    CARD_PNG = (marked("a character card (PNG)"), _CHARACTER_ADVICE)
    CARD_JSON = (marked("a character card (JSON)"), _CHARACTER_ADVICE)
    CHARX = (marked("a character card (CHARX)"), _CHARACTER_ADVICE)
    HARUHI = (
        marked("a ChatHaruhi character"),
        marked('put it into the presets folder and refer to it in a preset: "character": "{name}"'),
    )
    LOREBOOK = (
        marked("a lorebook"),
        marked(
            "add it to a preset with `troupe preset import {file} --into PRESET`, or put it into"
            ' the presets folder and refer to it in a preset: "lorebook": "{name}"'
        ),
    )
    LMDEPLOY_TEMPLATE = (
        marked("an LMDeploy chat template"),
        marked("use it with `troupe render --template {file} --messages FILE`"),
    )
    JINJA = (
        marked("a Jinja chat template"),
        marked(
            "use it with `troupe render --template {file} --messages FILE`, or paste it into a"
            " preset's key `template`"
        ),
    )
    TOKENIZER_CONFIG = (
        marked("a tokenizer configuration"),
        marked("use its `chat_template` with `troupe render --template {file} --messages FILE`"),
    )
    MESSAGES = (
        marked("a list of messages"),
        marked("render them with `troupe render --messages {file}`"),
    )
    GGUF = (marked("a model (GGUF)"), marked("install it with `troupe model pull {file}`"))
    IMAGE = (
        marked("an image without a character card"),
        marked("programs that resize or convert images remove the card, so use the original file"),
    )
    SILLYTAVERN_INTERFACE = (
        marked("a SillyTavern interface setting (a theme, a layout, quick replies, a list)"),
        _UNUSABLE_ADVICE,
    )
    REGEX_SCRIPTS = (marked("a SillyTavern regex script, or a list of them"), _UNUSABLE_ADVICE)
    YAML_CARD = (
        marked("a YAML character of text-generation-webui"),
        marked("open it there, export it as a character card, and import that"),
    )
    YAML = (marked("a YAML file"), _UNUSABLE_ADVICE)
    JSON_LIST = (marked("a JSON list"), marked("a preset or a card is one JSON object: {{...}}"))
    CHAT_LOG = (marked("a SillyTavern chat log"), _UNUSABLE_ADVICE)
    ARCHIVE = (marked("a zip archive"), marked("unpack it and use one of the files in it"))
    UNKNOWN = (
        marked("an unknown kind of file"),
        marked("use a preset, a character card, or a Modelfile"),
    )

    def describe(self, file: Path | str) -> Text:
        """Return a line about a file of this kind, with the command that accepts it."""
        title, remedy = self.value
        return translatable(
            "{file} is {title}; {remedy}",
            file=file,
            title=translatable(title),
            remedy=translatable(remedy, file=file, name=Path(file).name),
        )


CHARACTER_KINDS: Final = frozenset(one for one in FileKind if one.value[1] is _CHARACTER_ADVICE)
"""The kinds that `troupe character import` accepts."""

PRESET_KINDS: Final = frozenset(one for one in FileKind if one.value[1] is _PRESET_ADVICE) | {
    FileKind.PRESET,
    FileKind.LMDEPLOY_TEMPLATE,
}
"""The kinds that `troupe preset import` accepts."""

RENDER_TEMPLATE_KINDS: Final = frozenset({
    FileKind.JINJA,
    FileKind.LMDEPLOY_TEMPLATE,
    FileKind.INSTRUCT,
    FileKind.KOBOLDCPP_ADAPTER,
    FileKind.TOKENIZER_CONFIG,
})  # fmt: skip
"""The kinds that `troupe render --template` accepts."""


def check_file_kind(data: bytes, file: Path, accepted_kinds: Collection[FileKind]) -> FileKind:
    """Return a file's kind; raise `UserError` if it is known and not in `accepted_kinds`."""
    kind = detect_file_kind(data)
    if kind is not FileKind.UNKNOWN and kind not in accepted_kinds:
        raise UserError(kind.describe(file))
    return kind


def detect_file_kind(data: bytes) -> FileKind:
    """Detect a file's kind from at least its first `MAX_BYTES_READ` bytes, without executing it."""
    if data.startswith(b"GGUF"):
        return FileKind.GGUF
    if data.startswith(png.SIGNATURE):
        card_match = re.search(rb"tEXt(?:chara|ccv3)\0", data, re.IGNORECASE)
        return FileKind.CARD_PNG if card_match else FileKind.IMAGE
    if data.startswith((b"\xff\xd8\xff", b"GIF8")) or data[8:12] == b"WEBP":
        return FileKind.IMAGE
    if data.startswith(b"PK\x03\x04"):
        return _detect_archive_kind(data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return FileKind.UNKNOWN
    return _detect_text_kind(text)


def _detect_archive_kind(data: bytes) -> FileKind:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return FileKind.CHARX if b"card.json" in data else FileKind.ARCHIVE
    if "card.json" in names:
        return FileKind.CHARX
    is_haruhi = any(_HARUHI_PATH.search(name) for name in names)
    return FileKind.HARUHI if is_haruhi else FileKind.ARCHIVE


def _detect_text_kind(text: str) -> FileKind:
    content = text.lstrip()
    if content.startswith(("{", "[", "//", "/*")) and not content.startswith(("{{", "{%", "{#")):
        try:
            return _detect_json_kind(read_json(text).value)
        except JsonSyntaxError:
            kinds = (_detect_json_lines_kind(content), _guess_broken_json_kind(content))
            known_kinds = [kind for kind in kinds if kind is not FileKind.UNKNOWN]
            if known_kinds:
                return known_kinds[0]
            if _JSON_START.match(content):
                return FileKind.UNKNOWN  # the importer will report where it is broken
    if _JINJA_TAG.search(text):  # Modelfiles have Go templates, which lack these tags
        return FileKind.JINJA
    if _FROM_LINE.search(text):
        return FileKind.MODELFILE
    yaml_match = _YAML_KEY.match(_YAML_START.sub("", content))
    keys = {key.removeprefix("char_") for key in _YAML_KEY.findall(text)} if yaml_match else set()
    if "name" in keys and keys & {"context", "greeting", "description", "persona"}:
        return FileKind.YAML_CARD
    if _JINJA_VALUE.search(text):
        return FileKind.JINJA
    return FileKind.YAML if len(keys) > 1 else FileKind.UNKNOWN


def _detect_json_kind(value: object) -> FileKind:
    rows = value if isinstance(value, list) else [value]
    key_sets = [set(row) if isinstance(row, dict) else set() for row in rows]
    shared_keys = set.intersection(*key_sets) if key_sets else set()
    if isinstance(value, list):
        return _find_kind_by_keys(shared_keys, "list") or FileKind.JSON_LIST
    if isinstance(value, dict) and value:
        if kind := _find_kind_by_keys(shared_keys, "object"):
            return kind
        if len(shared_keys.intersection(_IDENTIFYING_KEYS["samplers"])) >= 3:
            return FileKind.SAMPLER
        has_only_known_keys = shared_keys <= {*_IDENTIFYING_KEYS["system_prompt"]}
        if has_only_known_keys and isinstance(value.get("content"), str):
            return FileKind.SYSTEM_PROMPT
        return _find_kind_by_keys(shared_keys, "few") or FileKind.UNKNOWN
    return FileKind.UNKNOWN


def _find_kind_by_keys(keys: Set[object], table_name: str) -> FileKind | None:
    kinds = (kind for markers, kind in _IDENTIFYING_KEYS[table_name] if keys >= {*markers.split()})
    return next(map(FileKind.__getitem__, kinds), None)


def _detect_json_lines_kind(text: str) -> FileKind:
    try:
        first_row = json.loads(text.partition("\n")[0])
    except (ValueError, RecursionError):
        return FileKind.UNKNOWN
    match first_row:
        case {"text": _} | {"enc_text": _} | {"luotuo_openai": _} | {"bge_zh_s15": _}:
            return FileKind.HARUHI
        case {"chat_metadata": _} | {"user_name": _, "character_name": _}:
            return FileKind.CHAT_LOG
        case _:
            return FileKind.UNKNOWN


def _guess_broken_json_kind(text: str) -> FileKind:
    if re.search(r'"spec"\s*:\s*"chara_card', text):
        return FileKind.CARD_JSON
    if '"provider"' in text:
        return FileKind.PRESET
    return FileKind.UNKNOWN
