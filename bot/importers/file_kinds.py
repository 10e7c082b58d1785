"""Tell what a file is by its content, and which command takes it.

One detector for all commands that take files, so that a file given to the wrong one is named and
sent to the right one. It looks at shapes only; the importers say what is wrong inside a file.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from bot.errors import UserError
from bot.importers import png
from bot.prompting.text.jsonc import JsonSyntaxError, read_json
from bot.texts.text import Text, marked, translatable

MAX_BYTES_READ: Final = 4 * 2**20
"""How much of a file decides what it is."""

_Json: TypeAlias = Mapping[str, object]

_HARUHI_PATH = re.compile(r"(^|/)system_prompt\.txt$|(^|/)(content|texts)/[^/]+\.txt$|\.jsonl$")
_FROM_LINE = re.compile(r"^[ \t]*from[ \t]+\S", re.IGNORECASE | re.MULTILINE)
_JSON_START = re.compile(r"\{\s*[\"}/]|\[\s*[\[{\"\]]")
_YAML_KEY = re.compile(r"^([A-Za-z_]\w*):(?: .*)?$", re.MULTILINE)
_YAML_START = re.compile(r"\A(?:(?:---[ \t]*|#.*|[ \t]*)\r?\n)+")
_JINJA_TAG = re.compile(r"\{%[-+]?\s*\w")
_JINJA_VALUE = re.compile(r"\{\{-?\s*[\w'\"(]")

_TO_PRESET = marked("make a preset of it with `troupe preset import {file}`")
_NOTHING = marked("nothing in Troupe takes it")
_TO_CHARACTER = marked("make a preset of it with `troupe character import {file}`")


class FileKind(Enum):
    """The kinds of files that people bring: what each is, and what to do with it.

    `{file}` is the path of a file, `{name}` its name.
    """

    PRESET = (marked("a preset"), marked("add it with `troupe preset import {file}`"))
    INSTRUCT = (marked("an instruct template of SillyTavern"), _TO_PRESET)
    CONTEXT = (marked("a context template of SillyTavern"), _TO_PRESET)
    SYSTEM_PROMPT = (marked("a system prompt of SillyTavern"), _TO_PRESET)
    SAMPLER = (marked("a text-completion (sampler) preset of SillyTavern"), _TO_PRESET)
    CHAT_COMPLETION = (marked("a chat-completion preset of SillyTavern"), _TO_PRESET)
    MASTER_EXPORT = (marked("a master export of SillyTavern"), _TO_PRESET)
    REASONING = (
        marked("a reasoning template of SillyTavern"),
        marked("nothing in Troupe takes it: the tags of thinking are found by themselves"),
    )
    KOBOLDCPP_ADAPTER = (marked("a chat adapter of koboldcpp"), _TO_PRESET)
    MODELFILE = (marked("a Modelfile"), _TO_PRESET)
    CARD_PNG = (marked("a character card (PNG)"), _TO_CHARACTER)
    CARD_JSON = (marked("a character card (JSON)"), _TO_CHARACTER)
    CHARX = (marked("a character card (CHARX)"), _TO_CHARACTER)
    HARUHI = (
        marked("a character of ChatHaruhi"),
        marked('put it into the presets folder and name it in a preset: "character": "{name}"'),
    )
    LOREBOOK = (
        marked("a lorebook"),
        marked(
            "add it to a preset with `troupe preset import {file} --into PRESET`, or put it into"
            ' the presets folder and name it in a preset: "lorebook": "{name}"'
        ),
    )
    CHAT_TEMPLATE_JSON = (
        marked("a chat template of LMDeploy"),
        marked("render with it by `troupe render --template {file} --messages FILE`"),
    )
    JINJA = (
        marked("a Jinja chat template"),
        marked(
            "render with it by `troupe render --template {file} --messages FILE`, or paste it into"
            " the key `template` of a preset"
        ),
    )
    TOKENIZER_CONFIG = (
        marked("the configuration of a tokenizer"),
        marked(
            "render with its `chat_template` by `troupe render --template {file} --messages FILE`"
        ),
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
    INTERFACE = (
        marked(
            "a setting of SillyTavern's own interface (a theme, a layout, quick replies, a list)"
        ),
        _NOTHING,
    )
    REGEX_SCRIPTS = (
        marked("a regular expression script of SillyTavern, or a list of them"),
        _NOTHING,
    )
    YAML_CARD = (
        marked("a character in YAML, as text-generation-webui writes it"),
        marked("open it there, export it as a character card, and import that"),
    )
    YAML = (marked("a YAML file"), _NOTHING)
    JSON_LIST = (marked("a JSON list"), marked("a preset or a card is one JSON object: {{...}}"))
    IMAGE_WORKFLOW = (marked("an image workflow of ComfyUI"), _NOTHING)
    CHAT_LOG = (marked("a chat log of SillyTavern"), _NOTHING)
    ARCHIVE = (marked("a zip archive"), marked("unpack it and give one of the files in it"))
    UNKNOWN = (
        marked("no kind of file that Troupe knows"),
        marked("give a preset, a character card or a Modelfile"),
    )

    def describe(self, file: Path | str) -> Text:
        """Return one line: what the file is, and which command takes it."""
        title, remedy = self.value
        return translatable(
            "{file} is {title}; {remedy}",
            file=file,
            title=translatable(title),
            remedy=translatable(remedy, file=file, name=Path(file).name),
        )


PRESET_IMPORTS: Final = frozenset({
    FileKind.PRESET,
    FileKind.INSTRUCT,
    FileKind.CONTEXT,
    FileKind.SYSTEM_PROMPT,
    FileKind.SAMPLER,
    FileKind.CHAT_COMPLETION,
    FileKind.MASTER_EXPORT,
    FileKind.KOBOLDCPP_ADAPTER,
    FileKind.CHAT_TEMPLATE_JSON,
    FileKind.MODELFILE,
})  # fmt: skip
"""What `troupe preset import` takes."""

CHARACTER_IMPORTS: Final = frozenset({FileKind.CARD_PNG, FileKind.CARD_JSON, FileKind.CHARX})
"""What `troupe character import` takes."""

TEMPLATE_FILES: Final = frozenset({
    FileKind.JINJA,
    FileKind.CHAT_TEMPLATE_JSON,
    FileKind.INSTRUCT,
    FileKind.KOBOLDCPP_ADAPTER,
    FileKind.TOKENIZER_CONFIG,
})  # fmt: skip
"""What `troupe render --template` takes."""


def check_file_kind(data: bytes, file: Path, accepted: Collection[FileKind]) -> FileKind:
    """Return what a file is; an unknown one is left to the importer.

    Raises:
        UserError: the text says what the file is and which command takes it.
    """
    kind = detect_file_kind(data)
    if kind is not FileKind.UNKNOWN and kind not in accepted:
        raise UserError(kind.describe(file))
    return kind


def detect_file_kind(data: bytes) -> FileKind:
    """Tell what a file is by its first `MAX_BYTES_READ` bytes or more; nothing is executed."""
    if data.startswith(b"GGUF"):
        return FileKind.GGUF
    if data.startswith(png.SIGNATURE):
        has_card = re.search(rb"tEXt(?:chara|ccv3)\0", data, re.IGNORECASE)
        return FileKind.CARD_PNG if has_card else FileKind.IMAGE
    if data.startswith((b"\xff\xd8\xff", b"GIF8")) or data[8:12] == b"WEBP":
        return FileKind.IMAGE
    if data.startswith(b"PK\x03\x04"):
        return _detect_archive(data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return FileKind.UNKNOWN
    return _detect_text(text)


def _detect_archive(data: bytes) -> FileKind:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return FileKind.CHARX if b"card.json" in data else FileKind.ARCHIVE
    if "card.json" in names:
        return FileKind.CHARX
    is_haruhi = any(_HARUHI_PATH.search(name) for name in names)
    return FileKind.HARUHI if is_haruhi else FileKind.ARCHIVE


def _detect_text(text: str) -> FileKind:
    stripped = text.lstrip()
    if stripped.startswith(("{", "[", "//", "/*")) and not stripped.startswith(("{{", "{%", "{#")):
        try:
            return _detect_json(_read_any_json(text))
        except (JsonSyntaxError, RecursionError):
            kinds = (_detect_json_lines(stripped), _guess_broken_json(stripped))
            known = [kind for kind in kinds if kind is not FileKind.UNKNOWN]
            if known:
                return known[0]
            if _JSON_START.match(stripped):
                return FileKind.UNKNOWN  # its importer says where it is broken
    if _JINJA_TAG.search(text):  # a Modelfile's templates are Go's and have none
        return FileKind.JINJA
    if _FROM_LINE.search(text):
        return FileKind.MODELFILE
    is_yaml = _YAML_KEY.match(_YAML_START.sub("", stripped))
    keys = {key.removeprefix("char_") for key in _YAML_KEY.findall(text)} if is_yaml else set()
    if "name" in keys and keys & {"context", "greeting", "description", "persona"}:
        return FileKind.YAML_CARD
    if _JINJA_VALUE.search(text):
        return FileKind.JINJA
    return FileKind.YAML if len(keys) > 1 else FileKind.UNKNOWN


def _read_any_json(text: str) -> object:
    """Parse JSON at once where it is strict: comments and lines take a hundred times as long."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return read_json(text).value


def _detect_json(value: object) -> FileKind:
    if isinstance(value, list):
        keys = [set(row) if isinstance(row, dict) else set() for row in value]
        return next(
            (kind for kind, fits in _LIST_SHAPES if keys and all(map(fits, keys))),
            FileKind.JSON_LIST,
        )
    if isinstance(value, dict):
        return next((kind for kind, fits in _JSON_SHAPES if fits(value)), FileKind.UNKNOWN)
    return FileKind.UNKNOWN


def _detect_json_lines(text: str) -> FileKind:
    try:
        first = json.loads(text.partition("\n")[0])
    except (ValueError, RecursionError):
        return FileKind.UNKNOWN
    match first:
        case {"text": _} | {"enc_text": _} | {"luotuo_openai": _} | {"bge_zh_s15": _}:
            return FileKind.HARUHI
        case {"chat_metadata": _} | {"user_name": _, "character_name": _}:
            return FileKind.CHAT_LOG
        case _:
            return FileKind.UNKNOWN


def _guess_broken_json(text: str) -> FileKind:
    """Tell what a damaged JSON file was meant to be, so that its importer names the damage."""
    if re.search(r'"spec"\s*:\s*"chara_card', text):
        return FileKind.CARD_JSON
    if '"provider"' in text:
        return FileKind.PRESET
    return FileKind.UNKNOWN


def _has(*keys: str) -> Callable[[Collection[str]], bool]:
    return lambda data: all(key in data for key in keys)


def _has_any(*keys: str) -> Callable[[Collection[str]], bool]:
    return lambda data: any(key in data for key in keys)


def _is_card(data: _Json) -> bool:
    spec = data.get("spec")
    if isinstance(spec, str) and isinstance(data.get("data"), dict):
        return True
    is_old = "name" in data and any(key in data for key in ("first_mes", "mes_example"))
    return is_old or {"name", "description", "personality"} <= data.keys()


def _is_template_json(data: _Json) -> bool:
    """Tell an LMDeploy template: its texts around the roles, which no other file has."""
    texts = {"meta_instruction", "eosys", "eoh", "eoa", "capability"}
    return bool(texts & data.keys()) or {"model_name"} == data.keys() & {"model_name", "provider"}


def _is_sampler(data: _Json) -> bool:
    samplers = {
        "temp", "temperature", "top_p", "top_k", "top_a", "typical_p", "tfs", "min_p", "rep_pen",
        "repetition_penalty", "rep_pen_range", "sampler_order", "sampler_priority", "mirostat_mode",
        "order", "max_length", "genamt",
    }  # fmt: skip
    return len(samplers & data.keys()) >= 3


def _is_interface(data: _Json) -> bool:
    telling = {"blur_strength", "main_text_color", "movingUIState", "quickReplySlots", "qrList"}
    return bool(telling & data.keys()) or {"main_api", "user_avatar"} <= data.keys()


def _is_image_workflow(data: _Json) -> bool:
    nodes = data.values()
    return bool(data) and all(isinstance(node, dict) and "class_type" in node for node in nodes)


def _is_system_prompt(data: _Json) -> bool:
    known = {"name", "content", "post_history", "role"}
    return isinstance(data.get("content"), str) and data.keys() <= known


_JSON_SHAPES: Final[tuple[tuple[FileKind, Callable[[_Json], bool]], ...]] = (
    (FileKind.REGEX_SCRIPTS, _has("findRegex", "replaceString")),
    (FileKind.INTERFACE, _is_interface),
    (FileKind.IMAGE_WORKFLOW, _is_image_workflow),
    (FileKind.CARD_JSON, _is_card),
    (FileKind.PRESET, _has("provider")),
    (FileKind.LOREBOOK, lambda data: isinstance(data.get("entries"), dict | list)),
    (FileKind.INSTRUCT, _has("input_sequence", "output_sequence")),
    (FileKind.CONTEXT, _has("story_string")),
    (FileKind.MASTER_EXPORT, _has_any("instruct", "context")),
    (FileKind.CHAT_COMPLETION, _has_any("prompts", "prompt_order")),
    (FileKind.KOBOLDCPP_ADAPTER, _has_any("user_start", "assistant_start")),
    (FileKind.TOKENIZER_CONFIG, _has("chat_template")),
    (FileKind.TOKENIZER_CONFIG, _has("tokenizer_class")),
    (FileKind.CHAT_TEMPLATE_JSON, _is_template_json),
    (FileKind.SAMPLER, _is_sampler),
    (FileKind.SYSTEM_PROMPT, _is_system_prompt),
    (FileKind.REASONING, _has("prefix", "suffix", "separator")),
    (FileKind.PRESET, _has("name", "model")),
)
"""The first shape that fits is the kind; more telling ones come first."""

_LIST_SHAPES: Final[tuple[tuple[FileKind, Callable[[Collection[str]], bool]], ...]] = (
    (FileKind.MESSAGES, _has("role")),
    (FileKind.INTERFACE, _has("filename", "type")),
    (FileKind.REGEX_SCRIPTS, _has("findRegex", "replaceString")),
    (FileKind.LOREBOOK, lambda keys: "content" in keys and ("key" in keys or "keys" in keys)),
)
"""The same for a list, by the keys of each of its objects."""
