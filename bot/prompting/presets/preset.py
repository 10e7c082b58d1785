"""The preset model: RodelAgent's session preset, extended for groups and characters."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)

from bot.chat.prompt import BUILTIN_TOOL_NAMES, OUTPUT_LIMIT_PARAMETERS, Role, find_output_limit
from bot.chat.session import display_name
from bot.errors import PresetError, TemplateError
from bot.prompting.lorebook.entries import Lorebook, is_regex
from bot.prompting.lorebook.files import LocatedPresetError, read_lorebook
from bot.prompting.persona import parse_persona
from bot.prompting.presets.fields import (
    MAX_LIST_ITEMS,
    Parameters,
    PresetMessage,
    StrictModel,
    find_name_problem,
    find_parameter_problem,
    preset_id,
    to_lowercase,
)
from bot.prompting.presets.regex_scripts import RegexScript, find_pattern_problem
from bot.runtime.plugins import enabled_plugins
from bot.templates import RoleTemplate, get
from bot.templates.jinja_template import check_source
from bot.texts.text import Text, error_text, join_texts, translatable

DEFAULT_MODEL = "default"
"""The value of `model` for the model that is configured for the provider."""

DEFAULT_INPUT_TOKENS = 16_000
"""A preset's default token budget for prompts; models with smaller contexts get less."""

IGNORED_KEYS = frozenset({"id", "plugins", "emoji"})
"""Keys that RodelAgent writes but Troupe ignores."""

MAX_DOLLARS = 10**9
"""The largest budget in dollars that databases can store as an integer of millionths."""

_MAX_FIRST_VERSION = 10**9  # later versions count up from it; PostgreSQL's integers end at 2**31
_MAX_OUTPUT_TOKENS = 1_000_000  # as in `parameters`
_MAX_INPUT_TOKENS = 10**9
_MAX_MESSAGES = 10_000
_MAX_STORY_STRING_CHARS = 50_000
_MAX_FALLBACKS = 8  # all may be tried for one message
_MAX_PARAMETERS_CHARS = 256 * 1024  # as JSON, which is sent with every request


NonEmptyText = Annotated[str, Field(min_length=1)]
NonEmptyTexts = Annotated[tuple[NonEmptyText, ...], Field(max_length=MAX_LIST_ITEMS)]


def _make_validator(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that rejects a value if `check` raises or returns a problem."""

    def validate(value: object) -> object:
        try:
            problem = check(value)
        except LocatedPresetError:
            raise
        except (PresetError, TemplateError) as error:
            problem = error_text(error)
        if isinstance(problem, str):
            raise ValueError(problem)  # noqa: TRY004 # pydantic expects it
        return value

    return AfterValidator(validate)


def _check_template(template: str | dict[str, object]) -> None:
    if isinstance(template, dict):
        RoleTemplate.from_json(template)
    elif template != "model":
        is_inline = "{{" in template or "{%" in template
        (check_source if is_inline else get)(template)


def _find_persona_problem(persona: str) -> Text | None:
    return join_texts(parse_persona(persona).problems, "; ") or None


def _find_path_problem(path: str) -> Text | None:
    return translatable("a file path cannot contain a NUL character") if "\0" in path else None


def _check_lorebook(lorebook: str | dict[str, object]) -> Text | None:
    if isinstance(lorebook, str):
        return _find_path_problem(lorebook)
    read_lorebook(lorebook, "inline")
    return None


def _find_wake_word_problem(word: str) -> Text | None:
    return find_pattern_problem(word) if is_regex(word) else None


def _find_tool_problem(name: str) -> str | None:
    tool_names = (*BUILTIN_TOOL_NAMES, *enabled_plugins("tools"))
    known_names = " or ".join(map(repr, tool_names))
    return None if name in tool_names else f"should be {known_names}, not {name!r}"


_ToolName = Annotated[str, _make_validator(_find_tool_problem)]


class WakeRules(StrictModel):
    """When the bot answers in a group; in a private chat, it always answers."""

    mention: StrictBool = True
    reply: StrictBool = True
    names: StrictBool = True
    """Whether the bot answers messages that contain one of the character's names as a word."""
    words: Annotated[
        tuple[Annotated[NonEmptyText, _make_validator(_find_wake_word_problem)], ...],
        Field(max_length=MAX_LIST_ITEMS),
    ] = ()
    """Words or phrases that the bot answers to, as whole words in a message, ignoring case;
    `/pattern/i` is a regular expression."""
    sticky: StrictBool = True
    """Whether the bot answers all messages in a thread or forum post where it answered before."""
    always: StrictBool = False
    chance: Annotated[float, Field(ge=0, le=1)] = 0
    """The probability of answering a message to which no other rule applies."""


BusyMode: TypeAlias = Literal["collect", "interrupt", "queue"]


class BusyRules(StrictModel):
    """How to handle messages that arrive while an answer is generated."""

    mode: BusyMode | None = None
    """`collect`: the next answer is to all of them. `interrupt`: the answer stops, and a new one
    includes them. `queue`: one answer to each. null: `interrupt` in private, else `collect`."""
    quiet_seconds: Annotated[float, Field(ge=0, le=5)] = 0.7
    """How long to wait for more messages before answering several; one message never waits."""
    at_most: Annotated[StrictInt, Field(ge=1, le=100)] = 20
    """The maximum number of messages that one answer replies to."""
    album_seconds: Annotated[float, Field(ge=0, le=5)] = 0.6
    """How long to wait for the next picture of an album, which counts as one message."""
    paste_seconds: Annotated[float, Field(ge=0, le=5)] = 1.5
    """How long to wait for the rest of a text that has the platform's maximum length."""


class Fallback(StrictModel):
    """A model to try if the previous model fails before its first token."""

    provider: NonEmptyText
    model: NonEmptyText = DEFAULT_MODEL


class SummaryModelChoice(StrictModel):
    """The model that summarizes older turns; {} means the preset's own model."""

    provider: NonEmptyText | None = None
    model: NonEmptyText | None = None
    max_output_tokens: StrictInt = Field(200, ge=16, le=_MAX_OUTPUT_TOKENS)


MarkerName: TypeAlias = Literal[
    "main", "jailbreak", "charDescription", "charPersonality", "scenario", "personaDescription",
    "worldInfoBefore", "worldInfoAfter", "dialogueExamples", "chatHistory",
]  # fmt: skip

EncodingName: TypeAlias = Literal[
    "cl100k", "cl100k_base", "o200k", "o200k_base", "o200k_harmony", "qwen3.5"
]
ScopeName: TypeAlias = Literal["channel", "user", "thread", "reply_chain"]


def _expand_shorthand(field_key: str) -> BeforeValidator:
    """Return a validator that accepts a plain string as shorthand for an object with this key."""
    return BeforeValidator(lambda value: {field_key: value} if isinstance(value, str) else value)


class PresetBudget(StrictModel):
    """The maximum cost of all of a preset's answers per period, in US dollars; null: unlimited."""

    day: Annotated[float, Field(gt=0, le=MAX_DOLLARS)] | None = None
    month: Annotated[float, Field(gt=0, le=MAX_DOLLARS)] | None = None


class OrderedPrompt(StrictModel):
    """An item of SillyTavern's prompt order: a text, or a placeholder (`marker`)."""

    marker: MarkerName | None = None
    """What the placeholder stands for. The texts of `main` and `jailbreak` are defaults for the
    preset's `system` and `post_history_instructions`, and the value of `{{original}}` in these."""
    role: Annotated[Role, BeforeValidator(to_lowercase)] = "system"
    content: str = ""
    name: str = ""
    """A name for people, which the model does not see."""
    depth: Annotated[StrictInt, Field(ge=0)] | None = None
    """How many conversation messages follow this prompt; null: it is not among the messages."""
    order: StrictInt = 100
    """At the same depth, prompts with higher orders come later."""


class PrompterChoice(StrictModel):
    """How form fields become a prompt; a plain string sets only the kind."""

    kind: Literal["alpaca", "chat"]
    instruction: str = ""
    """A text after `system`, which may have form fields, as in `Translate into {language}.`"""
    user: str | None = None
    """A text before the user's message, which may have form fields, too."""
    extra_keys: NonEmptyTexts = ()


_CHARACTER_KEYS = frozenset(
    {
        *("name", "version", "description", "avatar", "role_name", "persona", "character"),
        *("stories", "greeting", "alternate_greetings", "group_greetings", "personality"),
        *("scenario", "system", "messages", "post_history_instructions", "lorebook"),
        *("regex_scripts", "macros", "talkativeness", "aliases", "prompter", "tools"),
        *("mcp_servers", "adults_only"),
    }
)
"""The keys that a character keeps when it is played with another preset's model."""


class Preset(StrictModel):
    """A character or assistant; the keys up to `filter_chars` are from RodelAgent.

    See docs/sources.md#rodel.
    """

    name: Annotated[str, _make_validator(find_name_problem)]
    provider: NonEmptyText
    model: NonEmptyText
    system: str | None = None
    stream: StrictBool = True
    max_rounds: StrictInt = 0
    """How many rounds (a question with its answer) are sent to the model; 0 or less: all."""
    messages: Annotated[tuple[PresetMessage, ...], Field(max_length=_MAX_MESSAGES)] = ()
    parameters: Parameters = Field(default_factory=Parameters)
    stop_sequences: NonEmptyTexts = ()
    filter_chars: NonEmptyTexts = ()
    """Texts to remove from answers."""

    version: StrictInt = Field(1, ge=1, le=_MAX_FIRST_VERSION)
    description: str = ""
    avatar: str | None = None
    """The URL of a picture."""
    role_name: str | None = None
    persona: Annotated[str, _make_validator(_find_persona_problem)] | None = None
    character: Annotated[NonEmptyText, _make_validator(_find_path_problem)] | None = None
    """A file with persona and stories, relative to the presets folder, or a built-in role."""
    stories: Literal["persona", "recent"] = "persona"
    """Where stories are inserted: in the persona, or before the newest message."""
    greeting: str | None = None
    alternate_greetings: NonEmptyTexts = ()
    """More greetings. A conversation starts with the first, or with another: `/new 2`."""
    group_greetings: NonEmptyTexts = ()
    """Greetings used instead if several characters are active in a channel."""
    personality: str | None = None
    """SillyTavern's summary of the persona, inserted after it."""
    scenario: str | None = None
    """The circumstances of the conversation, inserted after the persona."""
    post_history_instructions: str | None = None
    """A system message after the newest message."""
    prompts: Annotated[tuple[OrderedPrompt, ...], Field(max_length=_MAX_MESSAGES)] = ()
    """SillyTavern's prompt order, used instead of Troupe's."""
    lorebook: Annotated[str | dict[str, object], _make_validator(_check_lorebook)] | None = None
    """SillyTavern's World Info, a card's `character_book`, or a file next to the preset's."""
    regex_scripts: Annotated[tuple[RegexScript, ...], Field(max_length=MAX_LIST_ITEMS)] = ()
    """Replacements in answers; with any, an answer is shown only once it is complete."""
    story_string: Annotated[str, Field(max_length=_MAX_STORY_STRING_CHARS)] | None = None
    """SillyTavern's template of the system message."""
    macros: StrictBool = False
    """Whether to expand macros such as {{char}}, {{user}}, {{random}} in the texts of a card."""
    user_name_in_message: Literal["default", "add", "not_add"] = "default"
    max_input_tokens: StrictInt | None = Field(DEFAULT_INPUT_TOKENS, ge=1, le=_MAX_INPUT_TOKENS)
    """The prompt's token budget; null or too large: the model's context minus the answer."""
    max_output_tokens: StrictInt | None = Field(None, ge=1, le=_MAX_OUTPUT_TOKENS)
    token_counter: EncodingName | None = None
    """The encoding in which tokens are counted; null: the backend's own tokenizer."""
    template: Annotated[str | dict[str, object], _make_validator(_check_template)] | None = None
    """A registered name, Jinja source, `model` (the GGUF's own), or the JSON of an LMDeploy chat
    template; used instead of string templates."""
    names_in_template: StrictBool = False
    """Whether the template writes speakers' names itself, from `message.name`, `char`, `user`."""
    trim_inputs: StrictBool = False
    prompter: Annotated[PrompterChoice | None, _expand_shorthand("kind")] = None
    scope: ScopeName = "channel"
    """Whose messages share one history; admins can override this with `/settings scope`."""
    context: Literal["addressed", "all"] = "all"
    """`all`: the bot also reads what people say to each other; `addressed`: the bot reads only
    questions and answers."""
    wake: WakeRules = Field(default_factory=WakeRules)
    aliases: NonEmptyTexts = ()
    """More names by which people can address the character."""
    talkativeness: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With several characters: the probability of answering a message that names none of them."""
    cooldown_seconds: Annotated[float, Field(ge=0)] = 0
    """How long the character stays silent after an answer, unless someone names it."""
    buttons: StrictBool = True
    """Whether answers have buttons, on platforms with buttons."""
    busy: Annotated[BusyRules, _expand_shorthand("mode")] = Field(default_factory=BusyRules)
    long_answer: Literal["parts", "file", "thread"] = "parts"
    """How an answer longer than one message is sent: as several messages, as its start with a file
    that contains all of it, or as its start with a thread for the rest."""
    thoughts: Literal["hidden", "folded"] = "hidden"
    """Whether readers can unfold a reasoning model's thoughts under its complete answer."""
    fallbacks: Annotated[tuple[Fallback, ...], Field(max_length=_MAX_FALLBACKS)] = ()
    tools: Annotated[tuple[_ToolName, ...], Field(max_length=MAX_LIST_ITEMS)] = ()
    """Tools that the model may call during an answer, if its provider supports tools."""
    mcp_servers: Annotated[tuple[NonEmptyText, ...], Field(max_length=MAX_LIST_ITEMS)] = ()
    """The names (as in the settings) of MCP servers that provide more tools."""
    budget: PresetBudget | None = None
    summary: SummaryModelChoice | None = None
    memory: StrictBool = False
    """Whether to remember what people say, as extracted by the `summary` or the preset's model."""
    adults_only: StrictBool = False
    """Whether the bot answers only in age-restricted channels, in groups with `/access adult on`,
    and in private chats with people who confirmed their age."""

    _behavior_preset_name: str = PrivateAttr("")

    @property
    def display_name(self) -> str:
        return display_name(self.name)

    @property
    def behavior_preset_name(self) -> str:
        """The name of the preset that gives a user-made character its behavior; "" for others."""
        return self._behavior_preset_name

    def with_behavior_of(self, behavior_preset: "Preset") -> "Preset":
        """Return this character with another preset's model, limits, and rules, but not tools."""
        fields = {name: getattr(behavior_preset, name) for name in type(self).model_fields}
        character_copy = self.model_copy(
            update={name: value for name, value in fields.items() if name not in _CHARACTER_KEYS}
        )
        character_copy._behavior_preset_name = behavior_preset.name  # noqa: SLF001 # our own copy
        return character_copy

    @property
    def character_name(self) -> str:
        return self.role_name or self.display_name

    @property
    def is_character(self) -> bool:
        """Whether the preset plays a character with its own name or picture."""
        return bool(self.character or self.persona or self.role_name or self.avatar)

    @property
    def has_prompt_order(self) -> bool:
        """Whether the preset sets the order of its prompts; one with a prompter does not."""
        return bool(self.prompts) and self.prompter is None

    @property
    def has_macros(self) -> bool:
        return self.macros or bool(self.prompts)

    @property
    def greetings(self) -> tuple[str, ...]:
        """All greetings, in the order of their numbers for `/new`."""
        return tuple(text for text in (self.greeting, *self.alternate_greetings) if text)

    def select_greetings(self, characters: int) -> tuple[str, ...]:
        """Return the greetings for a channel with this many active characters."""
        return self.group_greetings if characters > 1 and self.group_greetings else self.greetings

    @property
    def self_and_fallbacks(self) -> tuple["Preset", ...]:
        """This preset, followed by a copy of this preset for each fallback model."""
        fallback_models = ({"provider": one.provider, "model": one.model} for one in self.fallbacks)
        return (self, *(self.model_copy(update=model) for model in fallback_models))

    @property
    def output_limit(self) -> int | None:
        """The lowest of all limits on output tokens, or None."""
        return find_output_limit(self.max_output_tokens, self.parameters)

    @property
    def without_output_limit(self) -> "Preset":
        """A copy of the preset without limits on output tokens."""
        parameters = {
            name: value
            for name, value in self.parameters.items()
            if name not in OUTPUT_LIMIT_PARAMETERS
        }
        return self.model_copy(update={"max_output_tokens": None, "parameters": parameters})

    @property
    def calls_tools(self) -> bool:
        return bool(self.tools or self.mcp_servers)

    @property
    def id(self) -> str:
        """The name normalized for lookups, which ignore case and character width."""
        return preset_id(self.name)

    @cached_property
    def parsed_lorebook(self) -> Lorebook | None:
        """The parsed lorebook, or None if the preset has none or its file is not loaded."""
        return read_lorebook(self.lorebook, self.name) if isinstance(self.lorebook, dict) else None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls_and_ignored_keys(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        return {
            key: value
            for key, value in data.items()
            if key not in IGNORED_KEYS and (value is not None or key == "max_input_tokens")
        }

    @field_validator("parameters", mode="before")
    @classmethod
    def _check_parameters(cls, parameters: object) -> object:
        if len(json.dumps(parameters, default=str)) > _MAX_PARAMETERS_CHARS:
            raise ValueError(
                translatable(
                    "must be at most {limit} characters long; is `logit_bias` too large?",
                    limit=f"{_MAX_PARAMETERS_CHARS:,}",
                )
            )
        if isinstance(parameters, Mapping):
            for name in parameters:
                if problem := find_parameter_problem(str(name)):
                    raise LocatedPresetError(problem, (name,))
        return parameters
