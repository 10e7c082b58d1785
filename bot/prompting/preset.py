"""What a preset says: RodelAgent's session preset, and what a room full of people needs besides."""

import base64
import binascii
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from bot.chat.prompt import Role
from bot.errors import PresetError, TemplateError
from bot.prompting.lore_entries import Lorebook
from bot.prompting.lore_files import read_lorebook
from bot.prompting.persona import parse_persona
from bot.prompting.preset_names import name_problem, preset_id
from bot.prompting.story_string import parse_story
from bot.prompting.tokens import ENCODINGS
from bot.templates import get

DEFAULT_MODEL = "default"
"""As a preset's `model`: what the provider is configured with."""

FOREIGN_KEYS = frozenset({"id", "plugins", "emoji"})
"""RodelAgent writes these too; they mean nothing here and are dropped."""

_BASE64_HEADS = {"iVBORw": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}

Word = Annotated[str, Field(min_length=1)]
_MOST_WORDS = 256
Words = Annotated[tuple[Word, ...], Field(max_length=_MOST_WORDS)]


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _part_type(value: object) -> object:
    lowered = _lower(value)
    return "image" if lowered in {"image_url", "imageurl"} else lowered


def _within(low: float, high: float, *, whole: bool = False) -> AfterValidator:
    span = f"must be between {low:g} and {high:g}" if low < high else f"must be {low:g}"

    def check(value: object) -> object:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("number", "must be a number")
        if not low <= value <= high:  # so is NaN
            raise PydanticCustomError("range", "{span}", {"span": span})
        if whole and value != int(value):
            raise PydanticCustomError("whole", "must be a whole number")
        return value

    return AfterValidator(check)


def _few_words(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > _MOST_WORDS:
        raise PydanticCustomError("length", f"should have at most {_MOST_WORDS} items")
    return value


class Parameters(TypedDict, total=False):
    """What goes to the model as it is; the provider decides about keys that are not named here."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # pydantic's way to say so

    system_template: str | None
    user_template: str | None
    assistant_template: str | None
    end_template: str | None
    temperature: Annotated[object, _within(0, 5)]
    top_p: Annotated[object, _within(0, 1)]
    min_p: Annotated[object, _within(0, 1)]
    top_k: Annotated[object, _within(-1, 1_000_000, whole=True)]
    frequency_penalty: Annotated[object, _within(-2, 2)]
    presence_penalty: Annotated[object, _within(-2, 2)]
    repeat_penalty: Annotated[object, _within(0, 10)]
    max_tokens: Annotated[object, _within(0, 1_000_000, whole=True)]  # 0: the provider's own limit
    seed: Annotated[object, _within(-(2**63), 2**64, whole=True)]
    max_completion_tokens: Annotated[object, _within(0, 1_000_000, whole=True)]
    n: Annotated[object, _within(1, 1)]  # one answer is shown, so one is asked for
    best_of: Annotated[object, _within(1, 1)]
    stop: Annotated[object, AfterValidator(_few_words)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ContentPart(_Strict):
    """A text, or an image as a link, a `data:` URI or bare base64."""

    type: Annotated[Literal["text", "image"], BeforeValidator(_part_type)]
    text: str
    detail: Annotated[Literal["auto", "high", "low"] | None, BeforeValidator(_lower)] = None

    @property
    def image_url(self) -> str:
        """What an API takes as the address of the image: a link or a `data:` URI."""
        if self.text.startswith(("http://", "https://", "data:")):
            return self.text
        kind = next(
            (kind for head, kind in _BASE64_HEADS.items() if self.text.startswith(head)), "png"
        )
        return f"data:image/{kind};base64,{self.text}"

    @model_validator(mode="after")
    def _is_an_image(self) -> Self:
        if self.type == "image" and not self.text.startswith(
            ("http://", "https://", "data:image/")
        ):
            try:
                base64.b64decode(self.text, validate=True)
            except binascii.Error:
                raise ValueError("an image is a link, a data:image/ URI or base64") from None
            if not self.text:
                raise ValueError("an image is a link, a data:image/ URI or base64, not empty")
        return self


class PresetMessage(_Strict):
    """A line that stands in every conversation from the start. A bare string is one text part."""

    role: Annotated[Role, BeforeValidator(_lower)]
    content: tuple[ContentPart, ...]
    time: StrictInt | None = None  # Unix seconds

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if part.type == "text")

    @field_validator("content", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Wake(_Strict):
    """What makes the bot answer where several people talk; a private chat always does."""

    mention: StrictBool = True
    reply: StrictBool = True
    words: Words = ()  # said anywhere in a message, in any case
    always: StrictBool = False
    chance: Annotated[float, Field(ge=0, le=1)] = (
        0  # of answering a message that nothing else made it answer
    )


class Fallback(_Strict):
    """Whom to ask when the first provider gives no word."""

    provider: Word
    model: Word = DEFAULT_MODEL


class SummaryChoice(_Strict):
    """Who sums up what is too old for the history; {} is the preset's own model."""

    provider: Word | None = None
    model: Word | None = None
    max_output_tokens: StrictInt = Field(200, ge=16)


def _kind_alone(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class PrompterChoice(_Strict):
    """How a command's slots become a prompt (prompters.py); its kind alone is enough."""

    kind: Literal["alpaca", "chat"]
    instruction: str = ""  # behind `system`; `Translate into {language}.` has a slot
    user: str | None = None  # in front of the user's words; may have slots, too
    extra_keys: Words = ()


class Preset(_Strict):
    """One character or assistant. The first block is RodelAgent's, unchanged (SEEDS.md, 000)."""

    name: str
    provider: Word
    model: Word
    system: str | None = None
    stream: StrictBool = True
    max_rounds: StrictInt = 0  # questions with their answers that are sent; 0 and less: all
    messages: tuple[PresetMessage, ...] = ()
    parameters: Parameters = Field(default_factory=Parameters)
    stop_sequences: Words = ()
    filter_chars: Words = ()

    version: StrictInt = Field(1, ge=1)
    description: str = ""
    avatar: str | None = None  # a link
    role_name: str | None = None
    persona: str | None = None
    # A file with persona and stories, as seen from the presets' folder, or a known role's name.
    character: Word | None = None
    greeting: str | None = None
    alternate_greetings: Words = ()  # one of all is chosen by dice, or by its number: `/new 2`
    post_history_instructions: str | None = None  # said last, beside the newest message
    # SillyTavern's World Info or a card's `character_book`, or a file with one near the preset's.
    lorebook: str | dict[str, object] | None = None
    story_string: str | None = None  # SillyTavern's layout of the system message
    macros: StrictBool = False  # the texts come from a card: fill {{char}}, {{user}}, {{random}}
    user_name_in_message: Literal["default", "add", "not_add"] = "default"
    max_input_tokens: StrictInt | None = Field(1600, ge=1)  # null: what the model's context holds
    max_output_tokens: StrictInt | None = Field(None, ge=1)
    token_counter: str | None = None  # an encoding to count in; null: the backend's own
    # A registered name, Jinja source, or `model`: the GGUF's own; before string templates.
    template: str | None = None
    trim_inputs: StrictBool = False
    prompter: Annotated[PrompterChoice | None, BeforeValidator(_kind_alone)] = None
    scope: Literal["channel", "user", "thread", "reply_chain"] = "channel"
    context: Literal["addressed", "all"] = "addressed"
    wake: Wake = Field(default_factory=Wake)
    aliases: Words = ()  # what people call it besides, where several characters are
    talkativeness: Annotated[float, Field(ge=0, le=1)] = (
        0.5  # of answering what it was not called to
    )
    cooldown_seconds: Annotated[float, Field(ge=0)] = 0  # of silence after it spoke, unless called
    busy: Literal["collect", "interrupt", "queue"] = "collect"
    fallbacks: tuple[Fallback, ...] = ()
    summary: SummaryChoice | None = None

    @property
    def id(self) -> str:
        """The name as commands and files look it up: case and width do not matter."""
        return preset_id(self.name)

    @cached_property
    def book(self) -> Lorebook | None:
        """The lorebook as a value; None also for a file that nobody has read in."""
        return read_lorebook(self.lorebook, self.name) if isinstance(self.lorebook, dict) else None

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: object) -> object:
        """RodelAgent writes null for what is not set, and keys of its own."""
        if not isinstance(data, Mapping):
            return data
        return {
            key: value
            for key, value in data.items()
            if key not in FOREIGN_KEYS and (value is not None or key == "max_input_tokens")
        }

    @field_validator("template")
    @classmethod
    def _template(cls, template: str | None) -> str | None:
        if template not in {None, "model"} and "{{" not in template and "{%" not in template:
            try:
                get(template)
            except TemplateError as error:
                raise ValueError(str(error)) from None
        return template

    @field_validator("persona")
    @classmethod
    def _persona(cls, persona: str | None) -> str | None:
        if problems := parse_persona(persona or "").problems:
            raise ValueError("; ".join(problems))
        return persona

    @field_validator("token_counter")
    @classmethod
    def _token_counter(cls, name: str | None) -> str | None:
        if name is not None and name not in ENCODINGS:
            raise ValueError(f"counts in no encoding {name!r}; there are {', '.join(ENCODINGS)}")
        return name

    @field_validator("story_string")
    @classmethod
    def _story_string(cls, text: str | None) -> str | None:
        try:
            parse_story(text or "")
        except TemplateError as error:
            raise ValueError(str(error)) from None
        return text

    @field_validator("lorebook")
    @classmethod
    def _lorebook(cls, lorebook: object) -> object:
        if isinstance(lorebook, dict):
            try:
                read_lorebook(lorebook, "inline")
            except PresetError as error:
                raise ValueError(str(error)) from None
        elif isinstance(lorebook, str) and "\0" in lorebook:
            raise ValueError("no file's path has a NUL in it")
        return lorebook

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if problem := name_problem(name):
            raise ValueError(problem)
        return name
