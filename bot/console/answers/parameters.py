"""Say of each parameter of an answer where its value comes from."""

from collections.abc import Iterator
from typing import Any

import msgspec

from bot.chat.prompt import Prompt
from bot.chat.session import PresetVersion
from bot.frozen_dataclass import frozen_dataclass
from bot.texts.text import Text, translatable


class _Content(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None


@frozen_dataclass
class UsedParameter:
    """A parameter as it was sent."""

    name: str
    value: str
    origin: Text | None
    """None: the version of the preset is not known."""


def used_parameters(prompt: Prompt, version: PresetVersion | None) -> list[UsedParameter]:
    """Return the parameters with their origins, as far as the preset's version tells them."""
    return list(_used_parameters(prompt, version))


def _used_parameters(prompt: Prompt, version: PresetVersion | None) -> Iterator[UsedParameter]:
    content = _Content()
    try:
        content = msgspec.json.decode(version.content, type=_Content) if version else content
    except msgspec.DecodeError:
        version = None  # damaged, or from another version of Troupe
    given = content.parameters or {}
    for name, value in prompt.parameters.items():
        yield UsedParameter(name, str(value), _origin(version, value, given.get(name)))
    longest = prompt.max_output_tokens
    if longest is not None:
        origin = _origin(version, longest, content.max_output_tokens)
        yield UsedParameter("max_output_tokens", str(longest), origin)
    own = content.stop_sequences or ()
    others = translatable("names of the other speakers")
    for text in prompt.stop:
        origin = _origin(version, text, text) if text in own or version is None else others
        yield UsedParameter("stop", repr(text), origin)


def _origin(version: PresetVersion | None, value: object, given: object) -> Text | None:
    if version is None:
        return None
    if given is None:
        return translatable("default")
    if given == value:
        return translatable("preset, version {number}", number=version.version)
    return translatable("changed for this answer; the preset says {value}", value=given)
