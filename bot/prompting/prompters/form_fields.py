"""Fill the slots of an instruction: `{question}` stands for what the caller gives."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bot.errors import UserError

_ASK = re.compile(r"\s*/ask(?:@\w+)?(?:\s+|$)", re.IGNORECASE)

# Words of any script, so `{上下文}` is a slot; `{}` and `{"k": 1}` are plain text.
_SLOT = re.compile(r"\{(\w+)\}")


def field_names(*texts: str) -> tuple[str, ...]:
    """Name each slot once, in the order in which they first appear."""
    return tuple(dict.fromkeys(name for text in texts for name in _SLOT.findall(text)))


def extra_keys_section(keys: str | Sequence[str] | None) -> str:
    """Write the part of an instruction that asks for more values by their names."""
    if not keys:
        return ""
    if not isinstance(keys, str | tuple | list):
        raise UserError(f"extra_keys must be one name or a list of names, not {keys!r}")
    names = [keys] if isinstance(keys, str) else keys
    return "Here are some extra messages you can referred to:\n\n" + "".join(
        f"### {name}:\n{{{name}}}\n\n" for name in names
    )


def fill_fields(text: str, values: Mapping[str, str]) -> str:
    """Put the values in, in one pass: a slot inside a value stays what it is."""
    return _SLOT.sub(lambda match: values.get(match[1], match[0]), text)


def assign_fields(slots: Sequence[str], given: Any) -> tuple[dict[str, str], Any]:
    """Give each slot its value; what has no slot is the input. Raises UserError.

    A text or a number fills the only slot, or is the input when there is none. A mapping must name
    every slot and may hold one more value under any name: the input.
    """
    if isinstance(given, str | int):
        match slots:
            case []:
                return {}, given
            case [only]:
                return {only: str(given)}, ""
            case _:
                raise UserError(f"a value is needed for each of {_listed(slots)}, not one text")
    if not isinstance(given, Mapping):
        raise UserError(
            "the input must be a text, a number or values by their slots,"
            f" not {type(given).__name__}"
        )
    missing = [name for name in slots if name not in given]
    if missing:
        raise UserError(f"a value is missing for {_listed(missing)}")
    for name in slots:
        if not isinstance(given[name], str):
            raise UserError(f"the value of {name!r} must be a text, not {given[name]!r}")
    others = [name for name in given if name not in slots]
    if len(others) > 1:
        raise UserError(f"no slot for {_listed(others)}; there are slots for {_listed(slots)}")
    return {name: given[name] for name in slots}, given[others[0]] if others else ""


def parse_fields(text: str, slots: Sequence[str]) -> str | dict[str, str]:
    """Read a command's `key: value` lines; a value goes on until the next key.

    A text that does not begin with the name of a slot is returned as it is.
    """
    if not slots:
        return text
    names = "|".join(sorted(map(re.escape, slots), key=len, reverse=True))
    # The full-width colon is what a Chinese keyboard gives.
    keys = re.compile(rf"^[ \t]*({names})[ \t]*[:：]", re.MULTILINE | re.IGNORECASE)
    before, *found = keys.split(text)
    if before.strip() or not found:
        return text
    by_folded = {name.casefold(): name for name in slots}
    pairs = zip(found[::2], found[1::2], strict=True)
    return {by_folded[name.casefold()]: value.strip() for name, value in pairs}


def is_ask_command(text: str) -> bool:
    """Tell whether this is the command `/ask`, which fills the slots of a preset's prompter."""
    return _ASK.match(text) is not None


def strip_ask_command(text: str) -> str:
    """Take the command's word away; a text without it stays as it is."""
    return _ASK.sub("", text, count=1) if is_ask_command(text) else text


def ask_usage(slots: Sequence[str]) -> str:
    """Show people what to write."""
    if not slots:
        return "/ask and your question, or the question alone"
    return "/ask " + "\n".join(f"{name}: …" for name in slots)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
