"""Build the prompt of a task from form fields, as LazyLLM's prompters do."""

import dataclasses
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from bot.errors import UserError
from bot.texts.text import translatable
from bot.value_class import value_class

MessageDict = Mapping[str, Any]
"""A message in OpenAI's JSON format."""

History = Sequence[Sequence[str] | MessageDict]
"""Question and answer pairs, or messages."""

Tools = Sequence[MessageDict]


@value_class
class ModelConfig:
    """A model's system text and markers: `so…` is the start of a part, and `eo…` is its end."""

    system: str = "You are an AI-Agent developed by LazyLLM."
    sos: str = ""
    eos: str = ""
    soh: str = ""
    eoh: str = ""
    soa: str = ""
    eoa: str = ""
    soe: str | None = None
    """The start marker of an environment turn (a tool's result); None: the same as `soh`."""
    eoe: str | None = None
    tool_start_token: str = ""
    tool_args_token: str = ""
    tool_end_token: str = ""


EXAMPLE_MARKERS = {
    "sos": "<|start_system|>",
    "eos": "<|end_system|>",
    "soh": "<|Human|>:",
    "soa": "<|Assistant|>:",
}
"""The markers in LazyLLM's examples; pass them as `set_model_configs(**EXAMPLE_MARKERS)`."""


def format_tools(tools: Tools) -> str:
    """Return the tools as text in LazyLLM's format, or "" without tools."""
    return f"### Function-call Tools. \n\n{json.dumps(tools)}\n\n" if tools else ""


def format_history(history: History, config: ModelConfig) -> str:
    """Return a history as text with markers; raise `UserError` if it mixes pairs and messages."""
    if history and not isinstance(history[0], Mapping):
        # As in LazyLLM, a message after a pair counts as a pair of its keys.
        history = [item if isinstance(item, str) else list(item) for item in history]
    elif not all(isinstance(item, Mapping) for item in history):
        raise UserError("the history mixes pairs with messages; use only one of the two")
    return "".join(_format_message(message, config) for message in to_history_messages(history))


def to_history_messages(history: History) -> list[dict[str, Any]]:
    """Return a history as messages; raise `UserError` if its form is not supported."""
    messages: list[dict[str, Any]] = []
    for item in history:
        if isinstance(item, Mapping):
            messages.append(dict(item))
        elif isinstance(item, str) or len(item) != 2:
            raise UserError("the history must be pairs of question and answer, or messages")
        else:
            question, answer = item
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
    return messages


def to_input_messages(value: Any) -> list[dict[str, Any]]:
    """Return a text or messages as a list of messages; raise `UserError` for other input."""
    match value:
        case str():
            return [{"role": "user", "content": value}]
        case Mapping():
            return [dict(value)]
        case [*items] if all(isinstance(item, Mapping) for item in items):
            return [dict(item) for item in items]
        case _:
            raise UserError(f"the input must be a string, a message, or messages, not {value!r}")


def format_input_and_markers(value: Any, config: ModelConfig) -> tuple[str, str, str]:
    """Return the start marker, text, and end marker for the input, which may be a tool's result."""
    match value:
        case str() | int() | float():
            return config.soh, str(value), config.eoh
        case [*items] if all(isinstance(item, Mapping) for item in items):
            text = "\n".join(item.get("content", "") for item in items)
            if any(item.get("role") == "tool" for item in items):
                start = config.soh if config.soe is None else config.soe
                return start, text, config.eoh if config.eoe is None else config.eoe
            return config.soh, text, config.eoh
        case _:  # as in LazyLLM, a single message must be in a list
            raise UserError("the input must be a string or a list of messages")


def _format_message(message: MessageDict, config: ModelConfig) -> str:
    content = message.get("content") or ""
    match message.get("role"):
        case "user":
            return f"{config.soh}{content}{config.eoh}"
        case "assistant":
            calls = "".join(_format_call(call, config) for call in message.get("tool_calls", ()))
            return f"{config.soa}{content}{calls}{config.eoa}"
        case "tool":
            return f"{config.soe or ''}{_parse_tool_result(content)}{config.eoe or ''}"
        case _:  # a system message is written by the prompter
            return ""


def _format_call(call: MessageDict, config: ModelConfig) -> str:
    function = call["function"]
    if config.tool_args_token:
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        function = f"{function['name']}{config.tool_args_token}{arguments}"
    return f"{config.tool_start_token}\n{function}{config.tool_end_token}\n"


def _parse_tool_result(content: object) -> object:
    """Parse a tool's JSON result into a Python value, whose `repr` LazyLLM puts in the prompt."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content.strip())
    except (ValueError, RecursionError):
        return content


_ASK_COMMAND = re.compile(r"\A\s*/ask(?:@\w+)?(?:\s+|$)", re.IGNORECASE)

# Words of any script: `{上下文}` is a field, `{}` and `{"k": 1}` are plain text.
_FIELD_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def find_field_names(*texts: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in texts for name in _FIELD_PLACEHOLDER.findall(text)))


def format_extra_keys(keys: str | Sequence[str] | None) -> str:
    """Return the instruction section that lists extra fields; raise `UserError` if invalid."""
    if not keys:
        return ""
    if not isinstance(keys, str | tuple | list):
        raise UserError(f"extra_keys must be one name or a list of names, not {keys!r}")
    names = [keys] if isinstance(keys, str) else keys
    return "Here are some extra messages you can referred to:\n\n" + "".join(
        f"### {name}:\n{{{name}}}\n\n" for name in names
    )


def fill_fields(text: str, values_by_field: Mapping[str, str]) -> str:
    """Replace fields with values in one pass, which keeps fields inside values unchanged."""
    return _FIELD_PLACEHOLDER.sub(lambda match: values_by_field.get(match[1], match[0]), text)


def assign_fields(fields: Sequence[str], value: Any) -> tuple[dict[str, str], Any]:
    """Return the fields' values and the remaining input; raise `UserError` if a value is missing.

    A text or number is the value of the only field or, without fields, the remaining input. A
    mapping must contain every field, and may contain the remaining input under any other name.
    """
    if isinstance(value, str | int):
        if len(fields) > 1:
            raise UserError.translatable(
                "expected one value for each of {names}, not a single string",
                names=_format_names(fields),
            )
        return ({fields[0]: str(value)}, "") if fields else ({}, value)
    if not isinstance(value, Mapping):
        raise UserError(
            f"the input must be a string, a number or a mapping of field values, not"
            f" {type(value).__name__}"
        )
    if names := [name for name in fields if name not in value]:
        raise UserError.translatable("a value is missing for {names}", names=_format_names(names))
    for name in fields:
        if not isinstance(value[name], str):
            raise UserError(f"the value of {name!r} must be a string, not {value[name]!r}")
    other_names = [name for name in value if name not in fields]
    if len(other_names) > 1:
        raise UserError.translatable(
            "there is no field {names}; the fields are {fields}",
            names=_format_names(other_names),
            fields=_format_names(fields),
        )
    return {name: value[name] for name in fields}, value[other_names[0]] if other_names else ""


def parse_fields(text: str, fields: Sequence[str]) -> str | dict[str, str]:
    """Parse `name: value` lines; return the text itself if it does not start with a field."""
    if not fields:
        return text
    names = "|".join(sorted(map(re.escape, fields), key=len, reverse=True))
    # Chinese keyboards type the full-width colon.
    key_pattern = re.compile(rf"^[ \t]*({names})[ \t]*[:：]", re.MULTILINE | re.IGNORECASE)
    text_before_names, *names_and_values = key_pattern.split(text)
    if text_before_names.strip() or not names_and_values:
        return text
    names_by_casefold = {name.casefold(): name for name in fields}
    pairs = zip(names_and_values[::2], names_and_values[1::2], strict=True)
    return {names_by_casefold[name.casefold()]: value.strip() for name, value in pairs}


def is_ask_command(text: str) -> bool:
    """Return whether a text is an `/ask` command, which fills in the fields of a prompter."""
    return _ASK_COMMAND.match(text) is not None


def strip_ask_command(text: str) -> str:
    return _ASK_COMMAND.sub("", text)


def format_ask_usage(fields: Sequence[str]) -> str:
    """Return an example of the `/ask` command with these fields, for people to copy and edit."""
    if not fields:
        return translatable("/ask followed by your question, or just the question")
    return "/ask " + "\n".join(f"{name}: …" for name in fields)


def _format_names(field_names: Sequence[str]) -> str:
    return ", ".join(map(repr, field_names)) or "nothing"


Input = str | int | Mapping[str, Any]
Instruction = str | Mapping[str, str]
"""A text for the system message, or texts for `system` and `user`."""

_IGNORED_CONFIGS = frozenset({"separator", "plugin", "interpreter", "stop_words"})
_TOOL_TOKENS = ("tool_start_token", "tool_args_token", "tool_end_token")


class Prompter(ABC):
    """Builds prompts from system and user instructions, form fields, and tools."""

    accepts_turns = True
    """Whether the prompt can contain a history, and input that belongs to no form field."""
    answer_marker = ""
    """The text before the answer; if "", the model's start marker for assistant turns."""

    def __init__(
        self, system_part: str, user_part: str, tools: Tools | None, history: History | None = None
    ) -> None:
        self._system_part = system_part
        self._user_part = user_part
        self._tools = tools
        self._history = history or ()
        self._config = ModelConfig()

    @property
    def fields(self) -> tuple[str, ...]:
        names = find_field_names(self._system_part, self._user_part)
        return tuple(name for name in names if name not in self._tool_token_values())

    def set_model_configs(self, **configs: object) -> None:
        """Set fields of `ModelConfig` by name; fields that are None stay unchanged."""
        names = {field.name for field in dataclasses.fields(ModelConfig)}
        for name in configs:
            if name not in names | _IGNORED_CONFIGS:
                raise TypeError(
                    f"no model config {name!r}; known configs: {', '.join(sorted(names))}"
                )
        new_values: dict[str, Any] = {
            name: value for name, value in configs.items() if name in names and value is not None
        }
        self._config = dataclasses.replace(self._config, **new_values)

    def generate_prompt(
        self,
        input: Input | None = None,  # noqa: A002 # LazyLLM's name
        history: History | None = None,
        tools: Tools | None = None,
        label: str | None = None,
        *,
        return_dict: bool = False,
    ) -> Any:
        """Return a text for a local model or, if `return_dict`, `messages` and `tools` for an API.

        `input` contains the values of form fields and the newest turn. `label` is the expected
        answer, which is added at the end of a text for training. Raises `UserError`.
        """
        if self._tools and tools is not None:
            raise UserError("the constructor already got tools; do not pass tools to the call")
        values, newest_turn = assign_fields(self.fields, input)
        values |= self._tool_token_values()
        instruction = fill_fields(self._system_part, values)
        user = fill_fields(self._user_part, values)
        history, tools = history or (), self._tools or tools or ()
        if not self.accepts_turns and history:
            raise UserError("AlpacaPrompter does not support a history; use ChatPrompter")
        if not self.accepts_turns and newest_turn:
            raise UserError(
                "AlpacaPrompter does not support input without a form field;"
                " write {input} into the instruction, or list it in extra_keys"
            )
        if not return_dict:
            return self._to_text(instruction, user, newest_turn, history, tools) + (label or "")
        system = self._config.system + (f"\n{instruction}" if instruction else "")
        history_messages = to_history_messages([*self._history, *history])
        messages = [{"role": "system", "content": system}, *history_messages]
        messages += to_input_messages(newest_turn)
        if user:
            messages[-1]["content"] = user + messages[-1]["content"]
        return {"messages": messages, **({"tools": list(tools)} if tools else {})}

    def get_response(self, output: str, input: str | None = None) -> str:  # noqa: A002
        """Return the answer without the prompt, if the model repeated the prompt before it."""
        if input and output.startswith(input):
            return output[len(input) :]
        answer_marker = self.answer_marker or self._config.soa
        return output.rpartition(answer_marker)[2] if answer_marker else output

    def _tool_token_values(self) -> dict[str, str]:
        values = {name: str(getattr(self._config, name)) for name in _TOOL_TOKENS}
        return {name: value for name, value in values.items() if value}

    @abstractmethod
    def _to_text(
        self, system: str, user: str, value: Any, history: History, tools: Tools
    ) -> str: ...


_ALPACA_PREAMBLE = (
    "Below is an instruction that describes a task, paired with extra messages such as input that"
    " provides further context if possible. Write a response that appropriately completes the"
    " request.\n\n### Instruction:\n"
)


class AlpacaPrompter(Prompter):
    """Builds Alpaca's prompts: one instruction, no history. `extra_keys` names more form fields."""

    accepts_turns = False
    answer_marker = "### Response:"

    def __init__(
        self,
        instruction: Instruction | None = None,
        extra_keys: str | Sequence[str] | None = None,
        tools: Tools | None = None,
    ) -> None:
        extra_text = format_extra_keys(extra_keys)
        if isinstance(instruction, Mapping):
            system, user = instruction.get("system", ""), instruction.get("user", "") + extra_text
        else:
            system, user = f"{instruction or ''}\n\n{extra_text}", ""
        super().__init__(_ALPACA_PREAMBLE + system, user, tools)

    @override
    def _to_text(self, system: str, user: str, value: Any, history: History, tools: Tools) -> str:
        return f"{self._config.system}\n{system}\n{format_tools(tools)}\n{user}### Response:\n"


class ChatPrompter(Prompter):
    """Builds a conversation's prompts. Input that matches no form field is the newest user turn."""

    def __init__(
        self,
        instruction: Instruction | None = None,
        extra_keys: str | Sequence[str] | None = None,
        tools: Tools | None = None,
        history: History | None = None,
    ) -> None:
        extra_text = format_extra_keys(extra_keys)
        if isinstance(instruction, Mapping):
            system, user = instruction.get("system", ""), instruction.get("user", "") + extra_text
        else:  # without an instruction, LazyLLM drops the extra keys, too
            system, user = f"{instruction}\n{extra_text}\n" if instruction else "", ""
        super().__init__(system, user, tools, history)

    @override
    def _to_text(self, system: str, user: str, value: Any, history: History, tools: Tools) -> str:
        config = self._config
        soh, text, eoh = format_input_and_markers(value, config)
        turns = format_history(self._history, config) + format_history(history, config)
        return (
            f"{config.sos}{config.system}{system}{format_tools(tools)}{config.eos}\n\n"
            f"{turns}\n{soh}\n{user}{text}\n{eoh}{config.soa}\n"
        )
