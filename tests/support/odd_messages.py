"""Unparsable messages, and answers that a platform always refuses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.chats import Chat, Platforms


def _corrupt(event: Any) -> Any:
    """Make each message with the text "odd" in an event unparsable."""
    if isinstance(event, dict) and event.get("content") == "odd":
        return {**event, "mentions": 7, "thread": None}
    if isinstance(event, dict):
        return {key: _corrupt(value) for key, value in event.items()}
    return [_corrupt(one) for one in event] if isinstance(event, list) else event


@contextmanager
def odd_messages(platforms: Platforms) -> Iterator[None]:
    """Let `push_odd_message` make Discord's server send unparsable messages."""
    wire = platforms.discord
    write = wire._wire
    wire._wire = lambda event: write(_corrupt(json.loads(json.dumps(event, default=str))))
    try:
        yield
    finally:
        wire._wire = write


def push_odd_message(where: Chat) -> None:
    if where.is_telegram:
        where.platforms.telegram.push({"message": {"message_id": "odd", "chat": 7}})
    else:
        where.say("odd", 1)


@contextmanager
def refused_text(platforms: Platforms, name: str) -> Iterator[None]:
    """Make both platforms always refuse the answer to the question with this name."""
    text, wire = re.compile(f"RS{name}:"), platforms.discord  # also while it grows
    platforms.telegram.fault("*", times=10**6, match={"text": text}, error_code=500)
    take_fault = wire._take_fault

    def fault_of(method: str, path: str) -> Any:
        posted = wire.log[-1]["json"]
        if isinstance(posted, dict) and text.match(str(posted.get("content"))):
            wire.fault(method, path, status=500)
        return take_fault(method, path)

    wire._take_fault = fault_of
    try:
        yield
    finally:
        wire._take_fault = take_fault
