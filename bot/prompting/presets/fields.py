"""The types of a preset's fields: names, parameters, and messages."""

import base64
import binascii
import re
import tomllib
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictInt,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict

from bot.chat.prompt import Role
from bot.prompting.text.confusables import is_invisible
from bot.texts.text import Text, translatable

MAX_NAME_CHARS = 64

# Names that Windows opens as a device in any folder.
_WINDOWS_DEVICE_NAMES = re.compile(
    r"(con|prn|aux|nul|(com|lpt)\d|con(in|out)\$|clock\$)(\..*)?", re.IGNORECASE
)

# Slashes, look-alikes of slashes, percent encodings (also twice: %252f), and drives.
_PATH_SEPARATORS = re.compile(r"[/\\∕⁄⧸]|%[0-9a-f]{2}|^[a-z]:", re.IGNORECASE)

# Characters with a special meaning for a shell or Windows if a name is pasted into a command.
_SHELL_CHARACTERS = re.compile(r"[$`;|<>]")

# Control and format characters, surrogates, line and paragraph separators.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # needed in Persian spelling and emoji sequences


def preset_id(name: str) -> str:
    """Normalize a name for lookups, which ignore case and character width."""
    return unicodedata.normalize("NFKC", name).casefold()


def find_name_problem(name: str) -> Text | None:
    """Return why a name cannot be used in commands and file names, or None if it can."""
    normalized_name = unicodedata.normalize("NFKC", name)
    if all(char.isspace() or is_invisible(char) for char in name):
        return translatable("a name must not be empty")
    if len(name) > MAX_NAME_CHARS:
        return translatable("a name can have at most {limit} characters", limit=MAX_NAME_CHARS)
    char_categories = (unicodedata.category(char) for char in name if char not in _JOINERS)
    if not _FORBIDDEN_CATEGORIES.isdisjoint(char_categories):
        return translatable("a name must not contain control characters or line breaks")
    if _PATH_SEPARATORS.search(normalized_name):
        return translatable("a name must not contain path separators")
    if name != name.strip() or normalized_name[0] in ".-~":
        return translatable(
            "a name must not start with a dot, hyphen, tilde, or space, or end with a space"
        )
    if _WINDOWS_DEVICE_NAMES.fullmatch(normalized_name):
        return translatable("Windows reserves this name for a device")
    if match := _SHELL_CHARACTERS.search(normalized_name):
        return translatable("a name must not contain {character}", character=repr(match[0]))
    return None


MAX_LIST_ITEMS = 256

STRING_TEMPLATES = ("system_template", "user_template", "assistant_template", "end_template")
"""The parameters that contain RodelAgent's string templates."""

_REFUSED_PARAMETERS = tomllib.loads(
    (Path(__file__).parent / "refused_parameters.toml").read_text("utf-8")
)


def find_parameter_problem(name: str) -> Text | None:
    """Return why a preset must not have a parameter with this name, or None if it may."""
    normalized_name = name.strip().casefold().replace("-", "_")
    if _is_refused_parameter(normalized_name, "operator"):
        return translatable(
            "{name} can be set only by the operator, with the provider addresses and keys in"
            " TROUPE_PROVIDERS; remove it",
            name=repr(name),
        )
    if _is_refused_parameter(normalized_name, "unseen"):
        return translatable(
            "{name} would change the model, its tools, or its cost without the budgets noticing;"
            " use the preset's keys {keys} instead",
            name=repr(name),
            keys="model, fallbacks, tools, mcp_servers",
        )
    return None


def _is_refused_parameter(name: str, group: str) -> bool:
    refusal_rules = _REFUSED_PARAMETERS[group]
    return name in refusal_rules["names"] or name.startswith(tuple(refusal_rules["prefixes"]))


@dataclass(frozen=True)
class _Range:
    """A validator for a number within a range, or null; the number is kept as written."""

    minimum: float
    maximum: float
    is_integer: bool = False

    def check(self, value: object) -> object:
        """Return the value; raise `PydanticCustomError` if it is not a number in the range."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("number", "must be a number")
        if not self.minimum <= value <= self.maximum:  # also rejects NaN
            raise self._build_range_error()
        if self.is_integer and value != int(value):
            raise PydanticCustomError("whole", "must be a whole number")
        return value

    def _build_range_error(self) -> PydanticCustomError:
        bounds = {"low": f"{self.minimum:g}", "high": f"{self.maximum:g}"}
        if self.minimum < self.maximum:
            return PydanticCustomError("range", "must be between {low} and {high}", bounds)
        return PydanticCustomError("one_number", "must be {low}", bounds)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        kind = "integer" if self.is_integer else "number"
        number = {"type": kind, "minimum": self.minimum, "maximum": self.maximum}
        return {"anyOf": [number, {"type": "null"}]}


def _check_length(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MAX_LIST_ITEMS:
        raise PydanticCustomError("length", f"should have at most {MAX_LIST_ITEMS} items")
    return value


class Parameters(TypedDict, total=False):
    """Parameters for the model; the provider checks keys that are not listed here."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # pydantic reads it

    system_template: str | None
    user_template: str | None
    assistant_template: str | None
    end_template: str | None
    temperature: Annotated[object, _Range(0, 5)]
    top_p: Annotated[object, _Range(0, 1)]
    min_p: Annotated[object, _Range(0, 1)]
    top_k: Annotated[object, _Range(-1, 1_000_000, is_integer=True)]
    frequency_penalty: Annotated[object, _Range(-2, 2)]
    presence_penalty: Annotated[object, _Range(-2, 2)]
    repeat_penalty: Annotated[object, _Range(0, 10)]
    max_tokens: Annotated[object, _Range(0, 1_000_000, is_integer=True)]  # 0: provider's limit
    seed: Annotated[object, _Range(-(2**63), 2**64, is_integer=True)]
    max_completion_tokens: Annotated[object, _Range(0, 1_000_000, is_integer=True)]
    n: Annotated[object, _Range(1, 1)]  # a chat shows one answer
    best_of: Annotated[object, _Range(1, 1)]
    stop: Annotated[object, AfterValidator(_check_length)]


_BASE64_PREFIXES = {"iVBORw": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
_URL_PREFIXES = ("http://", "https://", "data:image/")


def to_lowercase(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _normalize_part_type(value: object) -> object:
    part_type = to_lowercase(value)
    return "image" if part_type in {"image_url", "imageurl"} else part_type


class StrictModel(BaseModel):
    """A part of a preset: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_IMAGE_PROBLEM = translatable("an image must be a link, a data:image/ URI, or base64")


class ContentPart(StrictModel):
    """A text, or an image as a link, a `data:` URI, or plain base64."""

    type: Annotated[Literal["text", "image"], BeforeValidator(_normalize_part_type)]
    text: str
    detail: Annotated[Literal["auto", "high", "low"] | None, BeforeValidator(to_lowercase)] = None

    @property
    def image_url(self) -> str:
        """The image as APIs expect it: a link or a `data:` URI."""
        if self.text.startswith(_URL_PREFIXES):
            return self.text
        prefixes = _BASE64_PREFIXES.items()
        image_formats = (one for prefix, one in prefixes if self.text.startswith(prefix))
        return f"data:image/{next(image_formats, 'png')};base64,{self.text}"

    @model_validator(mode="after")
    def _check_image(self) -> Self:
        if self.type == "image" and not self.text.startswith(_URL_PREFIXES):
            try:
                image_data = base64.b64decode(self.text, validate=True)
            except binascii.Error:
                image_data = b""
            if not image_data:
                raise ValueError(_IMAGE_PROBLEM)
        return self


class PresetMessage(StrictModel):
    """A message at the start of every conversation; `content` may be a plain string."""

    role: Annotated[Role, BeforeValidator(to_lowercase)]
    content: tuple[ContentPart, ...]
    time: StrictInt | None = None
    """The message's time in Unix seconds."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if part.type == "text")

    @field_validator("content", mode="before")
    @classmethod
    def _expand_plain_text(cls, value: object) -> object:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value
