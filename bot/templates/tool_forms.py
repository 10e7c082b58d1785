"""Detect how a chat template writes tool calls, and format conversations that contain them.

A template is rendered with a call and its result. The text around the tool's name shows the form
that the model was trained to use. If the tool, the call, or the result is missing in the prompt,
the template has no form, and the model is offered no tools (docs/sources.md#tool-calls).
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from bot.chat.incoming import to_storable_text
from bot.chat.prompt import ToolExchange, ToolSpec
from bot.templates.control_tokens import break_control_tokens
from bot.templates.jinja_template import Message

_PROBE_TOOL, _PROBE_ARGUMENT, _PROBE_RESULT = "probe_tool", "probe argument", "probe result"
_MAX_ARGUMENT_DEPTH: Final = 8
_MAX_ARGUMENT_CHARS: Final = 2000  # for one call, as JSON


class ToolCallFormat(StrEnum):
    """The form in which a model writes tool calls."""

    TAGGED = "tagged"
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes and Qwen. Qwen3.5,
    Qwen3-Coder, and GLM-4.5 and later have a tag for each argument between these tags."""
    LISTED = "listed"
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}]`: Mistral."""
    BARE = "bare"
    """The whole answer is `{"name": …, "parameters": {…}}`: Llama 3.1."""
    SECTION = "section"
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, with
    all calls between two more tokens: Kimi K2."""
    CHANNEL = "channel"
    """`<|channel|>commentary to=functions.NAME …<|message|>{…}<|call|>`: gpt-oss."""


_FORMAT_PATTERNS: Final = (
    (
        ToolCallFormat.TAGGED,
        re.compile(rf'<tool_call>\s*\{{[^<]*"name": "{_PROBE_TOOL}"[^<]*</tool_call>'),
    ),
    (
        ToolCallFormat.TAGGED,
        re.compile(rf"<tool_call>\s*<function={_PROBE_TOOL}>\s*<parameter=probe>"),
    ),
    (ToolCallFormat.TAGGED, re.compile(rf"<tool_call>\s*{_PROBE_TOOL}\s*<arg_key>probe</arg_key>")),
    (
        ToolCallFormat.SECTION,
        re.compile(rf"<\|tool_call_begin\|>functions\.{_PROBE_TOOL}:0<\|tool_call_arg"),
    ),
    (
        ToolCallFormat.CHANNEL,
        re.compile(rf"to=functions\.{_PROBE_TOOL}<\|channel\|>commentary json<\|mess"),
    ),
    (ToolCallFormat.LISTED, re.compile(rf'\[TOOL_CALLS\]\s*\[\{{[^\]]*"name": "{_PROBE_TOOL}"')),
    (ToolCallFormat.LISTED, re.compile(rf"\[TOOL_CALLS\]\s*{_PROBE_TOOL}(\[ARGS\])?\{{")),
    (ToolCallFormat.BARE, re.compile(rf'\{{"name": "{_PROBE_TOOL}", "parameters": \{{')),
)

PROBE_SCHEMAS: Final[Sequence[Message]] = (
    {
        "type": "function",
        "function": {
            "name": "probe_offered",
            "description": "probe description",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)


def _probe_messages(call_id: str) -> Sequence[Message]:
    function = {"name": _PROBE_TOOL, "arguments": {"probe": _PROBE_ARGUMENT}}
    call = {"id": call_id, "type": "function", "function": function}
    return (
        {"role": "user", "content": "probe question"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": _PROBE_TOOL, "tool_call_id": call_id, "content": _PROBE_RESULT},
    )


TOOL_PROBES: Final = (_probe_messages("call00000"), _probe_messages(f"functions.{_PROBE_TOOL}:0"))
"""Conversations with a tool call, each with another form of call id. Mistral's templates accept
only the first form, and Kimi K2's newer templates read the tool's name from the second."""


def detect_tool_call_format(prompt: str) -> ToolCallFormat | None:
    """Return the tool call form in a rendered probe; None if tool, call or result is missing."""
    if not all(
        text in prompt for text in ("probe_offered", _PROBE_TOOL, _PROBE_ARGUMENT, _PROBE_RESULT)
    ):
        return None
    return next((form for form, pattern in _FORMAT_PATTERNS if pattern.search(prompt)), None)


def to_template_tools(specs: Sequence[ToolSpec], special_tokens: Sequence[str]) -> list[Message]:
    """Convert tools to chat templates' format; break up control tokens and `special_tokens`."""
    return [
        {
            "type": "function",
            "function": {
                "name": spec.name,
                "description": break_control_tokens(spec.description, special_tokens),
                "parameters": _break_tokens(spec.parameters, special_tokens),
            },
        }
        for spec in specs
    ]


def to_template_messages(
    exchanges: Sequence[ToolExchange], call_format: ToolCallFormat, special_tokens: Sequence[str]
) -> list[Message]:
    """Return messages for earlier tool calls and results; break up `special_tokens` in calls."""
    messages: list[Message] = []
    call_number = 0
    ids_have_names = call_format is ToolCallFormat.SECTION
    for exchange in exchanges:
        text = exchange.text
        pairs = list(zip(exchange.calls, exchange.results, strict=True))
        allows_only_one_call = call_format in {ToolCallFormat.BARE, ToolCallFormat.CHANNEL}
        call_result_groups = [[pair] for pair in pairs] if allows_only_one_call else [pairs]
        for group in call_result_groups:
            template_calls, result_messages = [], []
            for index, (call, result) in enumerate(group):
                name = break_control_tokens(to_storable_text(call.name), special_tokens)
                call_id = f"functions.{name}:{index}" if ids_have_names else f"call{call_number:05}"
                call_number += 1
                arguments = _break_tokens(_parse_arguments(call.arguments), special_tokens)
                function = {"name": name, "arguments": arguments}
                template_calls.append({"id": call_id, "type": "function", "function": function})
                result_messages.append(
                    {"role": "tool", "name": name, "tool_call_id": call_id, "content": result}
                )
            messages.append({"role": "assistant", "content": text, "tool_calls": template_calls})
            messages += result_messages
            text = ""
    return messages


def _parse_arguments(text: str) -> Mapping[str, Any]:
    if len(text) > _MAX_ARGUMENT_CHARS:
        return {}
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _break_tokens(value: Any, special_tokens: Sequence[str], depth: int = 0) -> Any:
    if isinstance(value, str):
        return break_control_tokens(to_storable_text(value), special_tokens)
    if depth >= _MAX_ARGUMENT_DEPTH and isinstance(value, Mapping | list | tuple):
        return None
    if isinstance(value, Mapping):
        return {
            _break_tokens(str(key), special_tokens): _break_tokens(each, special_tokens, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_break_tokens(each, special_tokens, depth + 1) for each in value]
    return value
