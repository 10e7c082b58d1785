"""Prompts, tools, and the events of a generated answer."""

import operator
from collections.abc import Mapping
from dataclasses import astuple, field
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from bot.value_class import value_class

UNKNOWN_TOOL = "unknown"
"""The name in a receipt of a call of a tool that was not offered."""


TOOLS: Final = ("time", "dice", "history", "stories", "react")
"""The names of the built-in tools. None has an effect before the answer ends."""


@value_class
class ToolSpec:
    """A tool, as described to a model."""

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
    """JSON, if the model wrote it well."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the provider, such as signatures; they go back with the call."""


@value_class
class ToolExchange:
    """The calls of one response and their results, which the model reads in the next request."""

    text: str
    """What it wrote before them."""
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    """In the order of the calls."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the provider, such as reasoning; they go back with the message."""


@value_class
class ToolRecord:
    """A tool call, as recorded in a receipt."""

    name: str
    arguments: str
    result: str
    seconds: float


@value_class
class Capabilities:
    """The orders of roles that a template renders without losing text."""

    accepts_system: bool
    """A system message at the beginning."""
    accepts_late_system: bool
    """System messages between the turns."""
    accepts_repeated_roles: bool
    accepts_assistant_first: bool
    accepts_text_content: bool = True
    """A content that is a string, and not only a list of parts."""


ALL_CAPABILITIES: Final = Capabilities(True, True, True, True)


Role = Literal["system", "user", "assistant"]
OUTPUT_LIMIT_PARAMETERS = (
    *("max_tokens", "max_completion_tokens", "max_new_tokens"),
    *("n_predict", "num_predict"),
)


def lowest_output_limit(
    max_output_tokens: int | None, parameters: Mapping[str, object]
) -> int | None:
    """Return the lowest output token limit, under any name; values below 1 mean no limit."""
    limits = (max_output_tokens, *map(parameters.get, OUTPUT_LIMIT_PARAMETERS))
    return min([each for each in limits if isinstance(each, int) and each > 0], default=None)


@value_class
class Image:
    """An image's address; the image itself is never fetched here."""

    url: str
    """A link or a `data:` URI."""
    detail: Literal["auto", "high", "low"] | None = None


@value_class
class Message:
    """A message in the form that all chat APIs share."""

    role: Role
    content: str
    parts: tuple[str | Image, ...] = ()
    """For a message with images: texts and images in order; the texts joined are the content."""
    name: str | None = None
    """The speaker in a group; the content has the name as well."""

    @property
    def images(self) -> tuple[Image, ...]:
        if not self.parts:  # nearly always; this is called for every message of every prompt
            return ()
        return tuple(part for part in self.parts if isinstance(part, Image))


@value_class
class TemplateNames:
    """The names that a template writes by itself, as SillyTavern's instruct sequences do."""

    char: str
    """Who answers."""
    user: str
    """Who wrote the newest message."""
    is_group: bool
    """Whether there are two speakers or more besides the character."""


@value_class
class TemplateChoice:
    """The template to render a prompt with; without any field set, the model's own."""

    named: str | None = None
    """The name of a registered template."""
    source: str | None = None
    """A Jinja template from a user; rendered in a child process with limits."""
    strings: Mapping[str, str] | None = None
    """RodelAgent's four string templates: `system_template` and the others."""
    role_texts: Mapping[str, object] | None = None
    """The JSON of an LMDeploy chat template: the texts around each role."""
    names: TemplateNames | None = None
    """For a template that writes speakers' names: `message.name` instead of tags in the content."""
    trim_inputs: bool = False
    """Whether white space around every text is removed."""


@value_class
class Prompt:
    """Everything needed for one generation; backends look up nothing else."""

    messages: tuple[Message, ...]
    model: str
    """The preset's model name; the backend resolves it."""
    conversation: str
    """A stable id, by which backends keep prefix caches warm."""
    stop: tuple[str, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Sampling parameters by OpenAI's names."""
    max_output_tokens: int | None = None
    filtered: tuple[str, ...] = ()
    """Texts that are removed from the answer."""
    answers_as: str | None = None
    """The speaker tag, without its colon, that the model may echo before its answer."""
    speakers: tuple[str, ...] = ()
    """The tags of all other speakers, whose lines the model must not write."""
    template: TemplateChoice = field(default_factory=TemplateChoice)
    character: str = ""
    """The character that answers; each has a prefix cache of its own."""
    asked_by: str | None = None
    """A person's id, by which a fair queue takes turns."""
    tools: tuple[ToolSpec, ...] = ()
    """What the model may call; a backend offers them where `calls_tools`."""
    tool_exchanges: tuple[ToolExchange, ...] = ()
    """Earlier calls for this answer; they follow the messages."""
    has_fallback: bool = False
    """Whether another model is tried if this one fails; then it is not waited for."""
    begun: str = ""
    """The beginning of an answer that was cut off; the model continues it."""

    @property
    def output_limit(self) -> int | None:
        """The lowest output token limit, under any name."""
        return lowest_output_limit(self.max_output_tokens, self.parameters)


@value_class
class Delta:
    """A piece of the answer."""

    text: str


@value_class
class ReasoningDelta:
    """A piece of a model's reasoning; it is never shown or sent back to the model."""

    text: str


@value_class
class Retraction:
    """All text so far was reasoning, because an end tag came without a start tag."""


@value_class
class QueuePosition:
    """A position in a backend's queue; sent at each change before the first delta."""

    position: int
    """1 is the next."""
    seconds: float | None
    """The estimated waiting time, if there is an estimate."""


@value_class
class RateLimitWait:
    """The provider is rate limiting; sent before the first delta."""

    seconds: float


@value_class
class Usage:
    """An answer's token counts according to the model; 0 if not reported."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt: read from a cache."""
    output_tokens: int = 0
    written_tokens: int = 0
    """Of the prompt: written to a cache, which costs more at some providers."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, astuple(self), astuple(other)))


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    FILTERED = "content_filter"
    CANCELLED = "cancelled"
    """Somebody stopped the answer."""
    REPETITION = "repetition"
    """It repeated itself without end and was cut."""


@value_class
class Finish:
    """The end of an answer; a stream without it was cut off, which is an error."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the model wants answered before it continues."""
    attached: Mapping[str, object] = field(default_factory=dict)
    """What the provider wants back with these calls, such as its reasoning."""


Waiting: TypeAlias = QueuePosition | RateLimitWait
"""Why nothing is generated yet."""

GenerationEvent: TypeAlias = Waiting | ReasoningDelta | Retraction | Delta | Finish


@value_class
class PromptDescription:
    """The request that a backend would send to its model, formatted for display."""

    model: str
    """The model that the backend would ask, by its own name."""
    details: Mapping[str, str]
    text: str
    """The text that the model reads, or the body of the request."""
    is_rendered: bool
    """Whether a template made one text of the messages; otherwise messages are sent."""


@value_class
class PromptToken:
    """One token of a prompt, for display."""

    id: int
    text: str
    """U+FFFD for a part of a character."""
    control: bool
    trusted: bool
    """Whether it comes from the template, not from people."""
