"""What a service takes otherwise than OpenAI's API has it; the values stand with each vendor."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import Any

from bot.chat.prompt import Image, Message
from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class Continuation:
    """How a service is asked to go on behind the beginning of an answer.

    The beginning is the last message, of the assistant.
    """

    of_message: Mapping[str, object] = field(default_factory=dict)
    """Fields that this message has besides."""
    of_request: Mapping[str, object] = field(default_factory=dict)
    """Fields that the request has besides."""


@frozen_dataclass
class Quirks:
    """How a request has to be changed for one service or model."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """What parameters are called there."""
    refused: Collection[str] = ()
    """Parameters that make it reject the request, so that they are left out."""
    has_names: bool = False
    """Whether messages may have the field `name`."""
    system_first: bool = False
    """Whether system messages stand at the beginning only; later ones become a user's."""
    alternates: bool = False
    """Whether neighbours of one role are rejected, so that they become one message."""
    continuation: Continuation | None = None
    """None: its models only begin answers."""
    marks_prefix: bool = False
    """Whether a prefix is cached only up to where the request marks it."""

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a request as the service takes them."""
        renamed = {self.renamed.get(name, name): value for name, value in body.items()}
        return {name: value for name, value in renamed.items() if name not in self.refused}

    def arrange(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages in the roles and the order that the service takes."""
        if self.system_first:
            messages = _with_system_first(messages)
        return _merge_neighbours(messages) if self.alternates else messages


NO_QUIRKS = Quirks()


def _with_system_first(messages: Sequence[Message]) -> list[Message]:
    roles = [message.role for message in messages]
    begin = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
    later = (
        Message("user", each.content, each.parts) if each.role == "system" else each
        for each in messages[begin:]
    )
    return [*messages[:begin], *later]


def _merge_neighbours(messages: Sequence[Message]) -> list[Message]:
    groups = (list(group) for _, group in groupby(messages, key=lambda each: each.role))
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _merged(messages: Sequence[Message]) -> Message:
    content = "\n\n".join(message.content for message in messages)
    parts: tuple[str | Image, ...] = ()
    if any(message.parts for message in messages):
        parts = tuple(part for each in messages for part in each.parts or (each.content,))
    return Message(messages[0].role, content, parts)
