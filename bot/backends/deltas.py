"""Read the deltas of chat completions, in the forms that services give them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from bot.chat.storable import make_json_storable

JsonObject: TypeAlias = Mapping[str, Any]

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_REASONING_LISTS = ("reasoning_details", "thinking_blocks")  # OpenRouter's, LiteLLM's
_TEXT_FIELDS = ("thinking", "text", "summary")
# What a provider wants back with its calls: reasoning, and signatures under any name.
_ATTACHED = re.compile("reason|think|thought|signature|encrypted|extra_content|provider_specific")


def text_of(delta: JsonObject) -> str:
    """Return the text of the answer in a delta."""
    content = delta.get("content")
    if isinstance(content, list):  # Mistral's reasoning models send parts
        return "".join(_strings(content, ("text",)))
    refusal = delta.get("refusal")  # OpenAI's models refuse there, in place of the content
    return next((each for each in (content, refusal) if each and isinstance(each, str)), "")


def reasoning_of(delta: JsonObject) -> str:
    """Return the reasoning in a delta, once where it has several names."""
    for name in _REASONING_FIELDS:
        if isinstance(given := delta.get(name), str) and given:
            return given
    for name in _REASONING_LISTS:
        if texts := "".join(_strings(delta.get(name), _TEXT_FIELDS)):
            return texts
    content = delta.get("content")
    return "".join(_strings(content, ("thinking",))) if isinstance(content, list) else ""


def _strings(items: object, names: Sequence[str]) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        for name in names if isinstance(item, dict) else ():
            given = item.get(name)
            if isinstance(given, list):
                yield from _strings(given, ("text",))
            elif isinstance(given, str):
                yield given


@lru_cache(256)
def _is_attached(name: str) -> bool:
    return _ATTACHED.search(name) is not None


class AttachedFields:
    """Collects from the deltas of a response what has to go back to its provider with its calls.

    DeepSeek and Moonshot want their `reasoning_content`, OpenRouter its `reasoning_details`.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._items: dict[str, list[dict[str, Any]]] = {}
        self._others: dict[str, Any] = {}

    def feed(self, delta: JsonObject) -> None:
        """Add the fields of a delta."""
        for name, value in delta.items():
            if value is None or not _is_attached(name):
                continue
            if isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, dict):
                        _add_item(self._items.setdefault(name, []), item)
            else:
                self._others[name] = value

    @property
    def fields(self) -> JsonObject:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        found: JsonObject = make_json_storable({**texts, **self._items, **self._others})
        return found


def _add_item(items: list[dict[str, Any]], item: JsonObject) -> None:
    """Add an item, or a piece of the last one: pieces share its place and come before a signature.

    Encrypted items are whole.
    """
    last = items[-1] if items else {}
    place = [(each.get("type"), each.get("index"), each.get("format")) for each in (last, item)]
    if not last or last.get("signature") or "data" in item or place[0] != place[1]:
        items.append(dict(item))
        return
    for name, value in item.items():
        is_piece = name in _TEXT_FIELDS and isinstance(value, str)
        if value is not None:
            last[name] = (last.get(name) or "") + value if is_piece else value
