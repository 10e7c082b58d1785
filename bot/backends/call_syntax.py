"""Read the forms in which local models write the calls of tools (docs/sources.md#tool-calls)."""

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Final, TypeAlias

from bot.backends.tool_calls import MAX_CALLS
from bot.templates.tool_forms import ToolForm

Parameters: TypeAlias = Mapping[str, object]
"""What a tool takes, as a JSON schema."""

OPEN, CLOSE, LIST, PYTHON = "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
SECTION, CHANNEL, RECIPIENT = "<|tool_calls_section_begin|>", "<|channel|>", "to=functions."
_CALL, _ARGUMENT, _CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_END = "<|tool_calls_section_end|>"
SECTION_TOKENS: Final = (SECTION, _CALL, _ARGUMENT, _CALL_END, _END)
CHANNEL_TOKENS: Final = (CHANNEL, "<|message|>", "<|constrain|>", "<|start|>", "<|call|>")

_NAME: Final = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
_NAMED_ARGUMENTS: Final = re.compile(r"\s*([\w.-]{1,64})\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*\{")
_IN_SECTION: Final = re.compile(
    rf"{re.escape(_CALL)}\s*(?:functions\.)?([\w.-]{{1,64}}?)(?::\d+)?\s*{re.escape(_ARGUMENT)}"
)
_SECTION_END: Final = re.compile("|".join(map(re.escape, (_CALL_END, _CALL, _END))))
_IN_CHANNEL: Final = re.compile(
    r"to=functions\.([\w.-]{1,64})(?:(?!to=|<\|message\|>).){0,80}<\|message\|>"
)
_CHANNEL_END: Final = re.compile(r"<\|(?:call|end|start|return|channel)\|>")
_WITH_PARAMETERS: Final = (
    (  # Qwen3.5, Qwen3-Coder
        re.compile(r"\s*<function=([\w.-]{1,64})>"),
        re.compile(
            r"<parameter=([^<>\n]{1,64})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
        ),
    ),
    (  # GLM-4.5 and later
        re.compile(r"\s*([\w.-]{1,64})\s*(?=<arg_key>|\Z)"),
        re.compile(
            r"<arg_key>([^<>\n]{1,64})</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", re.DOTALL
        ),
    ),
)
_DECODER: Final = json.JSONDecoder()


def read_calls(
    form: ToolForm, written: str, offered: Mapping[str, Parameters], *, is_cut: bool
) -> list[tuple[str, str]]:
    """Return the names and the arguments, as JSON, of what was written from the first call on.

    Args:
        form: how calls are written.
        written: begins with a call.
        offered: the tools, with what they take.
        is_cut: whether the answer was longer than it may be; its last call is not whole then.
    """
    match form:
        case ToolForm.TAGGED:
            return _read_tagged(written, offered, is_cut=is_cut)
        case ToolForm.LISTED:
            return _read_listed(written, is_cut=is_cut)
        case ToolForm.BARE:
            return _read_bare(written)
        case ToolForm.SECTION:
            return _read_named(_IN_SECTION, _SECTION_END, written, is_cut=is_cut)
        case ToolForm.CHANNEL:
            return _read_named(_IN_CHANNEL, _CHANNEL_END, written, is_cut=is_cut)


def _read_tagged(
    written: str, offered: Mapping[str, Parameters], *, is_cut: bool
) -> list[tuple[str, str]]:
    """Read blocks between tags; the last one may lack its end, unless the answer was cut."""
    calls: list[tuple[str, str]] = []
    for block in written.split(OPEN)[1:]:
        inner, closed, _ = block.partition(CLOSE)
        if inner.strip() and (closed or not is_cut):
            calls.append(_read_parameters(inner, offered) or _read_call(inner))
    return calls


def _read_parameters(block: str, offered: Mapping[str, Parameters]) -> tuple[str, str] | None:
    """Read a call with a tag for each argument; None if it is none."""
    for head, pattern in _WITH_PARAMETERS:
        if named := head.match(block):
            taken = offered.get(named[1], {}).get("properties")
            types = taken if isinstance(taken, Mapping) else {}
            found = pattern.finditer(block, named.end())
            values = {one[1]: _typed(one[2], types.get(one[1])) for one in found}
            return named[1], _encode(values)
    return None


def _typed(text: str, schema: object) -> object:
    """Return the value of an argument: a text, unless the tool takes something else."""
    text = text.removeprefix("\n").removesuffix("\n")
    kind = schema.get("type") if isinstance(schema, Mapping) else "string"
    if kind in {None, "string"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_named(
    pattern: re.Pattern[str], end: re.Pattern[str], written: str, *, is_cut: bool
) -> list[tuple[str, str]]:
    """Read names, each with JSON between its mark and the next end mark."""
    calls: list[tuple[str, str]] = []
    for named in islice(pattern.finditer(written), MAX_CALLS):
        text = end.split(written[named.end() :], 1)[0].strip()
        arguments = _decode(text)
        if isinstance(arguments, dict):
            calls.append((named[1], _encode(arguments)))
        elif not is_cut:
            calls.append((named[1], text))
    return calls


def _read_listed(written: str, *, is_cut: bool) -> list[tuple[str, str]]:
    """Read a list of calls, or names with their arguments, behind each marker."""
    calls: list[tuple[str, str]] = []
    for block in written.split(LIST)[1:]:
        text = block.strip()
        listed = _decode(text)
        if isinstance(listed, list):
            calls += [_call_of(one) for one in listed[:MAX_CALLS] if isinstance(one, dict)]
        elif named := _NAMED_ARGUMENTS.match(text):
            start = named.end() - 1
            arguments = _decode(text[start:])
            if isinstance(arguments, dict):
                calls.append((named[1], _encode(arguments)))
            elif not is_cut:
                calls.append((named[1], text[start:]))
        elif text and not is_cut:
            calls.append(_read_call(text))
    return calls


def _read_bare(written: str) -> list[tuple[str, str]]:
    """Read objects one after the other, with `;` or white space between them."""
    calls: list[tuple[str, str]] = []
    text = written.strip().removeprefix(PYTHON).strip()
    while text.startswith("{") and len(calls) < MAX_CALLS:
        try:
            found, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        calls.append(_call_of(found))
        text = text[end:].lstrip("; \t\r\n")
    return calls


def _read_call(text: str) -> tuple[str, str]:
    found = _decode(text.strip())
    if isinstance(found, dict):
        return _call_of(found)
    name = _NAME.search(text)
    return name[1] if name else "unknown", text.strip()


def _call_of(found: dict[str, object]) -> tuple[str, str]:
    inner = found.get("function")
    given = inner if isinstance(inner, dict) else found
    name = given.get("name", inner)
    arguments = given.get("arguments", given.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = _encode(arguments)
    return name if isinstance(name, str) and name else "unknown", arguments


def _encode(arguments: object) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (RecursionError, ValueError):
        return "too deep to be read"


def _decode(text: str) -> object:
    """Return the JSON value that a text begins with, None if there is none."""
    try:
        return _DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
