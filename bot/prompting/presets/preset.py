"""What a preset says: RodelAgent's session preset, and what a room full of people needs besides."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)

from bot.errors import PresetError, TemplateError
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.lorebook.entries import Lorebook
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.personas.persona import parse_persona
from bot.prompting.presets.messages import PresetMessage, Strict
from bot.prompting.presets.names import name_problem, preset_id
from bot.prompting.presets.parameters import MOST_WORDS, Parameters
from bot.prompting.text.token_counter import ENCODINGS
from bot.templates import get

DEFAULT_MODEL = "default"
"""As a preset's `model`: what the provider is configured with."""

FOREIGN_KEYS = frozenset({"id", "plugins", "emoji"})
"""RodelAgent writes these too; they mean nothing here and are dropped."""

Word = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Word, ...], Field(max_length=MOST_WORDS)]


class WakeRules(Strict):
    """What makes the bot answer where several people talk; a private chat always does."""

    mention: StrictBool = True
    reply: StrictBool = True
    words: Words = ()  # said anywhere in a message, in any case
    always: StrictBool = False
    chance: Annotated[float, Field(ge=0, le=1)] = (
        0  # of answering a message that nothing else made it answer
    )


class Fallback(Strict):
    """Whom to ask when the first provider gives no word."""

    provider: Word
    model: Word = DEFAULT_MODEL


class SummaryChoice(Strict):
    """Who sums up what is too old for the history; {} is the preset's own model."""

    provider: Word | None = None
    model: Word | None = None
    max_output_tokens: StrictInt = Field(200, ge=16)


_NOT_YET = ("avatar", "busy", "scope")


def _kind_alone(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class PrompterChoice(Strict):
    """How a command's slots become a prompt (prompters.py); its kind alone is enough."""

    kind: Literal["alpaca", "chat"]
    instruction: str = ""  # behind `system`; `Translate into {language}.` has a slot
    user: str | None = None  # in front of the user's words; may have slots, too
    extra_keys: Words = ()


class Preset(Strict):
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
    wake: WakeRules = Field(default_factory=WakeRules)
    aliases: Words = ()  # what people call it besides, where several characters are
    talkativeness: Annotated[float, Field(ge=0, le=1)] = (
        0.5  # of answering what it was not called to
    )
    cooldown_seconds: Annotated[float, Field(ge=0)] = 0  # of silence after it spoke, unless called
    busy: Literal["collect", "interrupt", "queue"] = "collect"
    fallbacks: tuple[Fallback, ...] = ()
    summary: SummaryChoice | None = None

    @property
    def plays_as(self) -> str:
        """What its character is called."""
        return self.role_name or self.name

    @property
    def alternatives(self) -> tuple["Preset", ...]:
        """Itself, then itself on each of its fallbacks' models."""
        others = ({"provider": one.provider, "model": one.model} for one in self.fallbacks)
        return (self, *(self.model_copy(update=other) for other in others))

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The keys that it sets and that are kept, but of which nothing comes yet."""
        fields = type(self).model_fields
        return tuple(key for key in _NOT_YET if getattr(self, key) != fields[key].default)

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
            parse_story_string(text or "")
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
