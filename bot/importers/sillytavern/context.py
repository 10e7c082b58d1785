"""Import SillyTavern's context templates and system prompts."""

import re

from bot.errors import PresetError, TemplateError
from bot.importers.sillytavern.instruct import Json
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.text.json_fields import JsonFields
from bot.texts.text import text_of, translatable

_CONTROL = re.compile(r"<[|/a-z]|\[/?(INST|SYSTEM)|<<", re.IGNORECASE)
_OMITTED_TEXTS = ("chat_start", "example_separator")


def keys_of_context(data: Json, source: str) -> tuple[dict[str, object], list[str]]:
    """Return the keys of a preset with the template's `story_string`, and notes.

    Raises:
        PresetError: the `story_string` uses something that is not supported; the text names it.
    """
    read = JsonFields(data, source)
    text, notes = _without_control_tokens(read.text("story_string"))
    try:
        parse_story_string(text)
    except TemplateError as error:
        raise PresetError(
            translatable("{file}: {problem}", file=source, problem=text_of(error))
        ) from None
    notes += [
        f"{key} is left out: a template has its own marks between messages"
        for key in _OMITTED_TEXTS
        if read.text(key).strip()
    ]
    return {"story_string": text, "macros": True}, notes


def keys_of_system_prompt(data: Json, source: str) -> tuple[dict[str, object], list[str]]:
    """Return the keys of a preset with this system prompt, and notes."""
    read = JsonFields(data, source)
    keys: dict[str, object] = {
        "system": read.text("content").strip() or None,
        "post_history_instructions": read.text("post_history").strip() or None,
        "macros": True,
    }
    return keys, []


def _without_control_tokens(text: str) -> tuple[str, list[str]]:
    """Remove control tokens around the story, which older files hold; the template writes them."""
    first, last = text.find("{{"), text.rfind("}}")
    if first < 0:
        return text, []
    head, tail = text[:first], text[last + 2 :]
    kept = text
    if _CONTROL.search(tail):
        kept = kept[: last + 2]
    if _CONTROL.search(head):
        kept = kept[first:]
    if kept == text:
        return text, []
    return kept, ["control tokens are left out: the model's template writes them"]
