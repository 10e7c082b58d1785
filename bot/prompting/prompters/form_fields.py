"""Fill the form fields of an instruction: `{question}` stands for what the caller gives."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bot.errors import UserError
from bot.texts.text import translatable

_ASK_COMMAND = re.compile(r"\s*/ask(?:@\w+)?(?:\s+|$)", re.IGNORECASE)

# Words of any script, so `{上下文}` is a field; `{}` and `{"k": 1}` are plain text.
_FIELD = re.compile(r"\{(\w+)\}")


def field_names(*texts: str) -> tuple[str, ...]:
    """Return each field's name once, in the order of first appearance."""
    return tuple(dict.fromkeys(name for text in texts for name in _FIELD.findall(text)))


def extra_keys_section(keys: str | Sequence[str] | None) -> str:
    """Return the part of an instruction that holds further fields, each under its name.

    Raises:
        UserError: `keys` is neither a name nor a list of names.
    """
    if not keys:
        return ""
    if not isinstance(keys, str | tuple | list):
        raise UserError(f"extra_keys must be one name or a list of names, not {keys!r}")
    names = [keys] if isinstance(keys, str) else keys
    return "Here are some extra messages you can referred to:\n\n" + "".join(
        f"### {name}:\n{{{name}}}\n\n" for name in names
    )


def fill_fields(text: str, values: Mapping[str, str]) -> str:
    """Replace the fields in one pass: a field name inside a value is never expanded."""
    return _FIELD.sub(lambda match: values.get(match[1], match[0]), text)


def assign_fields(fields: Sequence[str], given: Any) -> tuple[dict[str, str], Any]:
    """Return the value of each field, and the remaining input, which has no field.

    A text or a number fills the only field, or is the input when there is none. A mapping must name
    every field and may hold one more value under any name: the input.

    Raises:
        UserError: values are missing, too many, or of a wrong type.
    """
    if isinstance(given, str | int):
        match fields:
            case []:
                return {}, given
            case [only]:
                return {only: str(given)}, ""
            case _:
                raise UserError(
                    translatable(
                        "a value is needed for each of {names}, not one text", names=_listed(fields)
                    )
                )
    if not isinstance(given, Mapping):
        raise UserError(
            "the input must be a text, a number or a mapping of field values,"
            f" not {type(given).__name__}"
        )
    missing = [name for name in fields if name not in given]
    if missing:
        raise UserError(translatable("a value is missing for {names}", names=_listed(missing)))
    for name in fields:
        if not isinstance(given[name], str):
            raise UserError(f"the value of {name!r} must be a text, not {given[name]!r}")
    others = [name for name in given if name not in fields]
    if len(others) > 1:
        raise UserError(
            translatable(
                "there is no field {names}; the fields are {fields}",
                names=_listed(others),
                fields=_listed(fields),
            )
        )
    return {name: given[name] for name in fields}, given[others[0]] if others else ""


def parse_fields(text: str, fields: Sequence[str]) -> str | dict[str, str]:
    """Parse the `name: value` lines of a command; a value goes on until the next field name.

    A text that does not begin with the name of a field is returned unchanged.
    """
    if not fields:
        return text
    names = "|".join(sorted(map(re.escape, fields), key=len, reverse=True))
    # Chinese keyboards type the full-width colon.
    keys = re.compile(rf"^[ \t]*({names})[ \t]*[:：]", re.MULTILINE | re.IGNORECASE)
    before, *found = keys.split(text)
    if before.strip() or not found:
        return text
    by_folded = {name.casefold(): name for name in fields}
    pairs = zip(found[::2], found[1::2], strict=True)
    return {by_folded[name.casefold()]: value.strip() for name, value in pairs}


def is_ask_command(text: str) -> bool:
    """Whether this is the command `/ask`, which fills the fields of a preset's prompter."""
    return _ASK_COMMAND.match(text) is not None


def strip_ask_command(text: str) -> str:
    """Remove the leading `/ask`, if there is one."""
    return _ASK_COMMAND.sub("", text, count=1) if is_ask_command(text) else text


def ask_usage(fields: Sequence[str]) -> str:
    """Return an example of the `/ask` command with these fields, for people to copy."""
    if not fields:
        return translatable("/ask and your question, or the question alone")
    return "/ask " + "\n".join(f"{name}: …" for name in fields)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
