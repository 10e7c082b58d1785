"""Write the parts of a prompter's prompt: markers, history, tools and the newest input."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass

MessageDict = Mapping[str, Any]
"""A message in OpenAI's JSON form."""

History = Sequence[Sequence[str] | MessageDict]
"""Pairs of question and answer, or messages."""

Tools = Sequence[MessageDict]


@frozen_dataclass
class ModelConfigs:
    """A model's system text, and the markers that it was trained to see around each part."""

    system: str = "You are an AI-Agent developed by LazyLLM."
    sos: str = ""
    """Start of the system text."""
    eos: str = ""
    """End of the system text."""
    soh: str = ""
    """Start of a human turn."""
    eoh: str = ""
    soa: str = ""
    """Start of an assistant turn."""
    eoa: str = ""
    soe: str | None = None
    """Start of an environment turn, which is a tool's answer; None: `soh`."""
    eoe: str | None = None
    tool_start_token: str = ""
    tool_args_token: str = ""
    tool_end_token: str = ""


LEGACY_MARKERS = {
    "sos": "<|start_system|>",
    "eos": "<|end_system|>",
    "soh": "<|Human|>:",
    "soa": "<|Assistant|>:",
}
"""The markers of the examples in LazyLLM's document: `set_model_configs(**LEGACY_MARKERS)`."""


def tools_text(tools: Tools) -> str:
    """Return the tools as LazyLLM writes them into a prompt; empty without tools."""
    return f"### Function-call Tools. \n\n{json.dumps(tools)}\n\n" if tools else ""


def history_text(history: History, configs: ModelConfigs) -> str:
    """Write pairs or messages between the model's markers; the first item decides which they are.

    Raises:
        UserError: the history mixes pairs and messages, or an item is neither.
    """
    if not history:
        return ""
    if isinstance(history[0], Mapping):
        return "".join(_message_text(item, configs) for item in history)
    if isinstance(history[0], str):
        raise UserError("the history must be pairs of question and answer, or messages")
    try:
        pairs = [(question, answer) for question, answer in history]
    except ValueError:
        raise UserError("each item of the history needs a question and an answer") from None
    return "".join(
        f"{configs.soh}{question}{configs.eoh}{configs.soa}{answer}{configs.eoa}"
        for question, answer in pairs
    )


def history_messages(history: History) -> list[dict[str, Any]]:
    """Return a history as messages.

    Raises:
        UserError: an item is neither a pair nor a message.
    """
    messages: list[dict[str, Any]] = []
    for item in history:
        if isinstance(item, Mapping):
            messages.append(dict(item))
        elif isinstance(item, str) or len(item) > 2:
            raise UserError("the history must be pairs of question and answer, or messages")
        else:
            messages += [
                {"role": role, "content": text}
                for role, text in zip(("user", "assistant"), item, strict=False)
            ]
    return messages


def input_messages(given: Any) -> list[dict[str, Any]]:
    """Return a text as a user message, and messages as copies.

    Raises:
        UserError: the input is neither.
    """
    match given:
        case str():
            return [{"role": "user", "content": given}]
        case Mapping():
            return [dict(given)]
        case [*items] if all(isinstance(item, Mapping) for item in items):
            return [dict(item) for item in items]
        case _:
            raise UserError(f"the input must be a text or messages, not {given!r}")


def input_text(given: Any, configs: ModelConfigs) -> tuple[str, str, str]:
    """Return the start marker, the text and the end marker of the input.

    A tool's answer may have markers of its own.
    """
    match given:
        case str() | int() | float():
            return configs.soh, str(given), configs.eoh
        case [*items] if all(isinstance(item, Mapping) for item in items):
            text = "\n".join(item.get("content", "") for item in items)
            if any(item.get("role") == "tool" for item in items):
                start = configs.soh if configs.soe is None else configs.soe
                return start, text, configs.eoh if configs.eoe is None else configs.eoe
            return configs.soh, text, configs.eoh
        case _:  # as in LazyLLM, a single message must be in a list
            raise UserError("the input must be a text or a list of messages")


def _message_text(message: Sequence[str] | MessageDict, configs: ModelConfigs) -> str:
    if not isinstance(message, Mapping):
        raise UserError("the history mixes pairs and messages; use one form")
    content = message.get("content") or ""
    match message.get("role"):
        case "user":
            return f"{configs.soh}{content}{configs.eoh}"
        case "assistant":
            calls = "".join(_call_text(call, configs) for call in message.get("tool_calls", ()))
            return f"{configs.soa}{content}{calls}{configs.eoa}"
        case "tool":
            return f"{configs.soe or ''}{_tool_answer(content)}{configs.eoe or ''}"
        case _:  # a system message is written by the prompter
            return ""


def _call_text(call: MessageDict, configs: ModelConfigs) -> str:
    function = call["function"]
    if configs.tool_args_token:
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        function = f"{function['name']}{configs.tool_args_token}{arguments}"
    return f"{configs.tool_start_token}\n{function}{configs.tool_end_token}\n"


def _tool_answer(content: object) -> object:
    """Parse JSON, because LazyLLM writes the value as Python prints it."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content.strip())
    except (ValueError, RecursionError):
        return content
