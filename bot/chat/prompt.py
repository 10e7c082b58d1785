"""What a model is asked and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Image:
    """What somebody sees, as an address: it is never fetched here."""

    url: str  # a link or a `data:` URI
    detail: Literal["auto", "high", "low"] | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the form that every chat API shares."""

    role: Role
    content: str
    # Where it has images: these between its texts, in order; the texts joined are the content.
    parts: tuple[str | Image, ...] = ()
    name: str | None = None  # who says so in a crowd; it stands in the content as well

    @property
    def images(self) -> tuple[Image, ...]:
        if not self.parts:  # as nearly always: this is asked for every message of every prompt
            return ()
        return tuple(part for part in self.parts if isinstance(part, Image))


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """What writes a prompt as text where a model takes no messages; none given: the model's own."""

    named: str | None = None  # a registered template
    source: str | None = None  # Jinja that somebody wrote: rendered where it can be stopped
    strings: Mapping[str, str] | None = None  # RodelAgent's four: system_template, ...
    trim_inputs: bool = False  # take the white space around all texts away


@dataclass(frozen=True, slots=True)
class Prompt:
    """Everything that one generation needs: no backend looks anything up elsewhere."""

    messages: tuple[Message, ...]
    model: str  # the preset's word; a backend knows what it stands for
    conversation: str  # a stable id: backends keep prefixes warm by it
    stop: tuple[str, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)  # sampling, by OpenAI's names
    max_output_tokens: int | None = None
    filtered: tuple[str, ...] = ()  # texts that never reach the reader
    answers_as: str | None = None  # the speaker tag that the model may echo, without its colon
    speakers: tuple[str, ...] = ()  # everybody else's tags: what the model must not say
    template: TemplateChoice = field(default_factory=TemplateChoice)
    character: str = ""  # who answers: each keeps a prefix of its own
    asked_by: str | None = None  # a person's id: where a line forms, people take turns


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what a reasoning model thinks before it answers: never shown, never sent back."""

    text: str


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Others are served first; said before the first delta, and again from time to time."""

    position: int  # 1: the next
    seconds: float | None  # until the turn comes, if anything is known of it


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took, as the model tells it; 0 where it does not."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    FILTERED = "content_filter"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an answer. A stream without one is a fault, never an answer."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)


GenerationEvent: TypeAlias = QueuePosition | ReasoningDelta | Delta | Finish
"""What a model's answer is made of."""


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt, for people to look at."""

    id: int
    text: str  # of half a character: U+FFFD
    control: bool
    trusted: bool  # from the template, not from people
