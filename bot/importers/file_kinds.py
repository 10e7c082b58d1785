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
from typing import Final, NamedTuple, TypeAlias

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
_TO_CHARACTER = marked("make a preset of it with `troupe character import {file}`")


class _Words(NamedTuple):
    title: str
    """What a file of this kind is, with its article."""
    remedy: str
    """What to do with it; {file} is its path, {name} its name."""


class FileKind(Enum):
    """The kinds of files that people bring, each with what it is and what to do with it."""

    PRESET = _Words(marked("a preset"), marked("add it with `troupe preset import {file}`"))
    INSTRUCT = _Words(marked("an instruct template of SillyTavern"), _TO_PRESET)
    CONTEXT = _Words(marked("a context template of SillyTavern"), _TO_PRESET)
    SYSTEM_PROMPT = _Words(marked("a system prompt of SillyTavern"), _TO_PRESET)
    SAMPLER = _Words(marked("a text-completion (sampler) preset of SillyTavern"), _TO_PRESET)
    CHAT_COMPLETION = _Words(marked("a chat-completion preset of SillyTavern"), _TO_PRESET)
    MASTER_EXPORT = _Words(marked("a master export of SillyTavern"), _TO_PRESET)
    REASONING = _Words(
        marked("a reasoning template of SillyTavern"),
        marked("nothing in Troupe takes it: the tags of thinking are found by themselves"),
    )
    KOBOLDCPP_ADAPTER = _Words(marked("a chat adapter of koboldcpp"), _TO_PRESET)
    MODELFILE = _Words(marked("a Modelfile"), _TO_PRESET)
    CARD_PNG = _Words(marked("a character card (PNG)"), _TO_CHARACTER)
    CARD_JSON = _Words(marked("a character card (JSON)"), _TO_CHARACTER)
    CHARX = _Words(marked("a character card (CHARX)"), _TO_CHARACTER)
    HARUHI = _Words(
        marked("a character of ChatHaruhi"),
        marked('put it into the presets folder and name it in a preset: "character": "{name}"'),
    )
    LOREBOOK = _Words(
        marked("a lorebook"),
        marked(
            "add it to a preset with `troupe preset import {file} --into PRESET`, or put it into"
            ' the presets folder and name it in a preset: "lorebook": "{name}"'
        ),
    )
    CHAT_TEMPLATE_JSON = _Words(
        marked("a chat template of LMDeploy"),
        marked("render with it by `troupe render --template {file} --messages FILE`"),
    )
    JINJA = _Words(
        marked("a Jinja chat template"),
        marked(
            "render with it by `troupe render --template {file} --messages FILE`, or paste it into"
            " the key `template` of a preset"
        ),
    )
    TOKENIZER_CONFIG = _Words(
        marked("the configuration of a tokenizer"),
        marked(
            "render with its `chat_template` by `troupe render --template {file} --messages FILE`"
        ),
    )
    MESSAGES = _Words(
        marked("a list of messages"), marked("render them with `troupe render --messages {file}`")
    )
    GGUF = _Words(marked("a model (GGUF)"), marked("install it with `troupe model pull {file}`"))
    IMAGE = _Words(
        marked("an image without a character card"),
        marked("programs that resize or convert images remove the card, so use the original file"),
    )
    INTERFACE = _Words(
        marked(
            "a setting of SillyTavern's own interface (a theme, a layout, quick replies, a list)"
        ),
        marked("nothing in Troupe takes it"),
    )
    REGEX_SCRIPTS = _Words(
        marked("a regular expression script of SillyTavern, or a list of them"),
        marked("nothing in Troupe takes it"),
    )
    YAML_CARD = _Words(
        marked("a character in YAML, as text-generation-webui writes it"),
        marked("open it there, export it as a character card, and import that"),
    )
    YAML = _Words(marked("a YAML file"), marked("nothing in Troupe takes it"))
    JSON_LIST = _Words(
        marked("a JSON list"), marked("a preset or a card is one JSON object: {{...}}")
    )
    IMAGE_WORKFLOW = _Words(
        marked("an image workflow of ComfyUI"), marked("nothing in Troupe takes it")
    )
    CHAT_LOG = _Words(marked("a chat log of SillyTavern"), marked("nothing in Troupe takes it"))
    ARCHIVE = _Words(marked("a zip archive"), marked("unpack it and give one of the files in it"))
    UNKNOWN = _Words(
        marked("no kind of file that Troupe knows"),
        marked("give a preset, a character card or a Modelfile"),
    )

    def describe(self, file: Path | str) -> Text:
        """Return one line: what the file is, and which command takes it."""
        remedy = translatable(self.value.remedy, file=file, name=Path(file).name)
        return translatable(
            "{file} is {title}; {remedy}",
            file=file,
            title=translatable(self.value.title),
            remedy=remedy,
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
    match value:
        case list():
            is_messages = bool(value) and all(
                isinstance(each, dict) and "role" in each for each in value
            )
            if is_messages:
                return FileKind.MESSAGES
            is_index = bool(value) and all(
                isinstance(each, dict) and {"filename", "type"} <= each.keys() for each in value
            )
            if is_index:
                return FileKind.INTERFACE
            return _detect_list(value)
        case dict():
            return next((kind for kind, fits in _JSON_SHAPES if fits(value)), FileKind.UNKNOWN)
        case _:
            return FileKind.UNKNOWN


def _detect_list(rows: list[object]) -> FileKind:
    keys = [set(row) if isinstance(row, dict) else set() for row in rows]
    if keys and all({"findRegex", "replaceString"} <= each for each in keys):
        return FileKind.REGEX_SCRIPTS
    if keys and all("content" in each and each & {"key", "keys"} for each in keys):
        return FileKind.LOREBOOK
    return FileKind.JSON_LIST


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


def _has(*keys: str) -> Callable[[_Json], bool]:
    return lambda data: all(key in data for key in keys)


def _is_card(data: _Json) -> bool:
    spec = data.get("spec")
    if isinstance(spec, str) and isinstance(data.get("data"), dict):
        return True
    is_old = "name" in data and any(key in data for key in ("first_mes", "mes_example"))
    return is_old or {"name", "description", "personality"} <= data.keys()


def _is_lorebook(data: _Json) -> bool:
    return isinstance(data.get("entries"), dict | list)


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
    return bool(data) and all(
        isinstance(node, dict) and "class_type" in node for node in data.values()
    )


def _is_system_prompt(data: _Json) -> bool:
    return isinstance(data.get("content"), str) and data.keys() <= {
        "name", "content", "post_history", "role",
    }  # fmt: skip


_JSON_SHAPES: Final[tuple[tuple[FileKind, Callable[[_Json], bool]], ...]] = (
    (FileKind.REGEX_SCRIPTS, _has("findRegex", "replaceString")),
    (FileKind.INTERFACE, _is_interface),
    (FileKind.IMAGE_WORKFLOW, _is_image_workflow),
    (FileKind.CARD_JSON, _is_card),
    (FileKind.PRESET, _has("provider")),
    (FileKind.LOREBOOK, _is_lorebook),
    (FileKind.INSTRUCT, _has("input_sequence", "output_sequence")),
    (FileKind.CONTEXT, _has("story_string")),
    (FileKind.MASTER_EXPORT, lambda data: bool({"instruct", "context"} & data.keys())),
    (FileKind.CHAT_COMPLETION, lambda data: bool({"prompts", "prompt_order"} & data.keys())),
    (
        FileKind.KOBOLDCPP_ADAPTER,
        lambda data: bool({"user_start", "assistant_start"} & data.keys()),
    ),
    (FileKind.TOKENIZER_CONFIG, _has("chat_template")),
    (FileKind.TOKENIZER_CONFIG, _has("tokenizer_class")),
    (FileKind.CHAT_TEMPLATE_JSON, _is_template_json),
    (FileKind.SAMPLER, _is_sampler),
    (FileKind.SYSTEM_PROMPT, _is_system_prompt),
    (FileKind.REASONING, _has("prefix", "suffix", "separator")),
    (FileKind.PRESET, _has("name", "model")),
)
"""The first shape that fits is the kind; more telling ones come first."""
