"""Prompts, tools, and the events of a generated answer."""

import operator
from collections.abc import Mapping
from dataclasses import astuple, field
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from bot.value_class import value_class

UNKNOWN_TOOL_NAME = "unknown"
"""The tool name in receipts for calls of tools that were not offered."""


BUILTIN_TOOL_NAMES: Final = ("time", "dice", "history", "stories", "react")
"""The names of the built-in tools. No tool has an effect before the answer ends."""


@value_class
class ToolSpec:
    """A tool's description for the model."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of an object."""


@value_class
class ToolCall:
    """A tool call as the model wrote it; untrusted."""

    id: str
    name: str
    arguments: str
    """Normally JSON, but the model may have written anything."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """Additional provider fields, such as signatures, to send back with the call."""


@value_class
class ToolExchange:
    """The tool calls of one response and their results, sent with the next request."""

    text: str
    """The text that the model wrote before the calls."""
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    """In the order of the calls."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """Additional provider fields, such as reasoning, to send back with the message."""


@value_class
class ToolRecord:
    """A tool call, as recorded in a receipt."""

    name: str
    arguments: str
    result: str
    seconds: float


@value_class
class TemplateCapabilities:
    """Which orders of roles a chat template renders without losing text."""

    accepts_system: bool
    """Whether it renders a system message at the beginning."""
    accepts_late_system: bool
    """Whether it renders system messages between turns."""
    accepts_repeated_roles: bool
    accepts_assistant_first: bool
    accepts_text_content: bool = True
    """Whether it renders content given as a string, not only as a list of parts."""


ALL_CAPABILITIES: Final = TemplateCapabilities(True, True, True, True)


Role = Literal["system", "user", "assistant"]
OUTPUT_LIMIT_PARAMETERS = (
    *("max_tokens", "max_completion_tokens", "max_new_tokens"),
    *("n_predict", "num_predict"),
)


def find_output_limit(max_tokens: int | None, parameters: Mapping[str, object]) -> int | None:
    """Return the lowest output token limit above 0, or None if there is no limit."""
    limits = (max_tokens, *map(parameters.get, OUTPUT_LIMIT_PARAMETERS))
    return min([each for each in limits if isinstance(each, int) and each > 0], default=None)


@value_class
class Image:
    """The address of an image, which is not downloaded here."""

    url: str
    """A URL or a `data:` URI."""
    detail: Literal["auto", "high", "low"] | None = None


@value_class
class Message:
    """A message of a prompt, in the form common to all chat APIs."""

    role: Role
    content: str
    parts: tuple[str | Image, ...] = ()
    """For a message with images: texts and images in order; `content` is the joined texts."""
    name: str | None = None
    """The speaker in a group; the content contains the name, too."""

    @property
    def images(self) -> tuple[Image, ...]:
        if not self.parts:  # nearly always; this is called for every message of every prompt
            return ()
        return tuple(part for part in self.parts if isinstance(part, Image))


@value_class
class TemplateNames:
    """Names for a template that writes names itself, like SillyTavern's instruct sequences."""

    char: str
    """The character that answers."""
    user: str
    """The author of the newest message."""
    is_group: bool
    """Whether there are at least two speakers besides the character."""


@value_class
class TemplateChoice:
    """The template to render a prompt with; by default the model's own."""

    named: str | None = None
    """The name of a registered template."""
    source: str | None = None
    """The Jinja template of a preset; rendered in a child process with limits."""
    strings: Mapping[str, str] | None = None
    """RodelAgent's four string templates: `system_template` and the others."""
    role_texts: Mapping[str, object] | None = None
    """The JSON of an LMDeploy chat template: the texts around each role's messages."""
    names: TemplateNames | None = None
    """Names for a template that writes `message.name`, so that the content has no name tags."""
    trim_inputs: bool = False
    """Whether leading and trailing whitespace of every text is removed."""


@value_class
class Prompt:
    """The complete input for one generation; backends look up nothing else."""

    messages: tuple[Message, ...]
    model: str
    """The preset's model name; the backend resolves it."""
    conversation: str
    """A stable id that lets backends reuse the prefix cache of the conversation."""
    stop: tuple[str, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Sampling parameters by OpenAI's names."""
    max_output_tokens: int | None = None
    filtered: tuple[str, ...] = ()
    """Texts to remove from the answer."""
    answers_as: str | None = None
    """A speaker tag, without colon, to remove if the model writes it before its answer."""
    speakers: tuple[str, ...] = ()
    """The tags of all other speakers, whose lines the model must not write."""
    template: TemplateChoice = field(default_factory=TemplateChoice)
    character: str = ""
    """The character that answers; each character has its own prefix cache."""
    asked_by: str | None = None
    """The id of the person who asked, so that a queue can alternate between people."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the model may call, on backends with `calls_tools`."""
    tool_exchanges: tuple[ToolExchange, ...] = ()
    """Earlier tool calls for this answer; placed after the messages."""
    has_fallback: bool = False
    """Whether a fallback model exists, so that the request fails instead of waiting."""
    begun: str = ""
    """The beginning of a cut-off answer that the model should continue."""

    @property
    def output_limit(self) -> int | None:
        """The lowest of the output token limits that the preset sets, whatever they are called."""
        return find_output_limit(self.max_output_tokens, self.parameters)


@value_class
class Delta:
    """The next piece of the generated answer."""

    text: str


@value_class
class ReasoningDelta:
    """The next piece of a model's reasoning, which is not part of the answer."""

    text: str


@value_class
class Retraction:
    """Says that all text so far was reasoning, because an end tag came without a start tag."""


@value_class
class QueuePosition:
    """The position in a backend's queue; sent whenever it changes before the first delta."""

    position: int
    """The place in the queue; 1 is next in line."""
    seconds: float | None
    """The estimated waiting time; None: unknown."""


@value_class
class RateLimitWait:
    """A wait for the provider's rate limit; sent before the first delta."""

    seconds: float


@value_class
class Usage:
    """An answer's token counts as reported by the provider; 0: not reported."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from a cache."""
    output_tokens: int = 0
    written_tokens: int = 0
    """Prompt tokens that were written to a cache, which costs more at some providers."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, astuple(self), astuple(other)))


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    FILTERED = "content_filter"
    CANCELLED = "cancelled"
    """Somebody stopped the answer."""
    REPETITION = "repetition"
    """The answer repeated itself endlessly and was cut."""


@value_class
class Finish:
    """The end of an answer; a stream without this event was cut off, which is an error."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the model wants answered before it continues."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """Additional provider fields, such as reasoning, to send back with these calls."""


Waiting: TypeAlias = QueuePosition | RateLimitWait
"""The reasons why generation has not started yet."""

GenerationEvent: TypeAlias = Waiting | ReasoningDelta | Retraction | Delta | Finish


@value_class
class PromptDescription:
    """The request a backend would send to its model, formatted for display."""

    model: str
    """The backend's name of the model."""
    details: Mapping[str, str]
    text: str
    """The rendered prompt, or the request body."""
    is_rendered: bool
    """Whether `text` is a prompt rendered by a template, not a request body."""


@value_class
class PromptToken:
    """One token of a prompt, for display."""

    id: int
    text: str
    """The token's text; U+FFFD for an incomplete character."""
    control: bool
    """Whether this is a control token, such as one that ends a turn."""
    trusted: bool
    """Whether it comes from the template, not from a person."""
