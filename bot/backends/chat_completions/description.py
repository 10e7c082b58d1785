"""Describe a request to a service for people to look at: its body, with images cut short."""

import json
from collections.abc import Mapping
from typing import Any

from bot.chat.prompt import PromptDescription

_MAX_DATA_CHARS = 80  # an image in a request has millions


def describe_request(model: str, body: Mapping[str, object]) -> PromptDescription:
    """Describe a request whose messages the service's own template makes into a text."""
    text = json.dumps(_shortened(body), ensure_ascii=False, indent=2)
    details = {"template": "the service's own; messages are sent"}
    return PromptDescription(model, details, text, is_rendered=False)


def _shortened(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: _cut(each) if name in {"url", "data"} else _shortened(each)
                for name, each in value.items()
            }
        case list() | tuple():
            return [_shortened(each) for each in value]
        case _:
            return value


def _cut(data: object) -> object:
    if not isinstance(data, str) or len(data) <= _MAX_DATA_CHARS:
        return data
    return f"{data[:_MAX_DATA_CHARS]}… ({len(data)} characters)"
