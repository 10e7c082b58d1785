"""The base of LazyLLM's prompters: fill an instruction, then make messages or a text of it.

The results are those of LazyLLM (docs/sources.md#lazyllm), but the parts stay separate values until
the end: no text from a caller can move from one role to another.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, overload

from bot.errors import UserError
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.prompters.form_fields import assign_fields, field_names, fill_fields
from bot.prompting.prompters.prompt_text import (
    History,
    ModelConfigs,
    Tools,
    history_messages,
    input_messages,
)

Input = str | int | Mapping[str, Any]
Instruction = str | Mapping[str, str]
"""A text for the system part, or texts for `system` and `user`."""

_IGNORED_CONFIGS = frozenset({"separator", "plugin", "interpreter", "stop_words"})
_TOOL_TOKENS = ("tool_start_token", "tool_args_token", "tool_end_token")


@frozen_dataclass
class FilledPrompt:
    """The parts of one prompt with their form fields filled."""

    instruction: str
    user: str
    input: Any
    history: History
    tools: Tools


class Prompter(ABC):
    """Builds prompts of an instruction for the system, one for the user, and tools."""

    def __init__(self, system_part: str, user_part: str, tools: Tools | None) -> None:
        self._system_part = system_part
        self._user_part = user_part
        self._tools = tools
        self._configs = ModelConfigs()

    @property
    def fields(self) -> tuple[str, ...]:
        """The form fields that a caller has to fill."""
        names = field_names(self._system_part, self._user_part)
        return tuple(name for name in names if name not in self._tool_tokens())

    def set_model_configs(self, **configs: object) -> None:
        """Set fields of ModelConfigs by name; None leaves a field unchanged."""
        known = {field.name for field in dataclasses.fields(ModelConfigs)}
        for name in configs:
            if name not in known | _IGNORED_CONFIGS:
                raise TypeError(f"no model config {name!r}; known are {', '.join(sorted(known))}")
        given: dict[str, Any] = {
            name: value for name, value in configs.items() if name in known and value is not None
        }
        self._configs = dataclasses.replace(self._configs, **given)

    @overload
    def generate_prompt(
        self,
        input: Input | None = ...,
        history: History | None = ...,
        tools: Tools | None = ...,
        label: str | None = ...,
        *,
        return_dict: Literal[False] = ...,
    ) -> str: ...

    @overload
    def generate_prompt(
        self,
        input: Input | None = ...,
        history: History | None = ...,
        tools: Tools | None = ...,
        label: str | None = ...,
        *,
        return_dict: Literal[True],
    ) -> dict[str, Any]: ...

    def generate_prompt(
        self,
        input: Input | None = None,  # noqa: A002 # LazyLLM's name
        history: History | None = None,
        tools: Tools | None = None,
        label: str | None = None,
        *,
        return_dict: bool = False,
    ) -> str | dict[str, Any]:
        """Return the text for a local model, or `messages` (and `tools`) for an API.

        Args:
            input: the values of the form fields, and the newest turn (form_fields.py).
            history: pairs of question and answer, or messages with roles.
            tools: tool definitions, if the constructor got none.
            label: the expected answer, which a training text ends with.
            return_dict: return messages instead of a text.

        Raises:
            UserError: the input does not fit the form fields, or the history is malformed.
        """
        if self._tools and tools is not None:
            raise UserError("the tools were given to the constructor; leave them out of the call")
        values, rest = assign_fields(self.fields, input)
        values |= self._tool_tokens()
        parts = FilledPrompt(
            instruction=fill_fields(self._system_part, values),
            user=fill_fields(self._user_part, values),
            input=rest,
            history=history or (),
            tools=self._tools or tools or (),
        )
        self._check(parts)
        return self._as_messages(parts) if return_dict else self._as_text(parts) + (label or "")

    def get_response(self, output: str, input: str | None = None) -> str:  # noqa: A002
        """Remove the prompt that a model has repeated in front of its answer."""
        if input and output.startswith(input):
            return output[len(input) :]
        marker = self._answer_marker()
        return output.rpartition(marker)[2] if marker else output

    def _tool_tokens(self) -> dict[str, str]:
        """Form fields that the model's configuration fills, not the caller."""
        values = {name: str(getattr(self._configs, name)) for name in _TOOL_TOKENS}
        return {name: value for name, value in values.items() if value}

    @abstractmethod
    def _check(self, parts: FilledPrompt) -> None: ...

    @abstractmethod
    def _as_text(self, parts: FilledPrompt) -> str: ...

    @abstractmethod
    def _answer_marker(self) -> str: ...

    def _as_messages(self, parts: FilledPrompt) -> dict[str, Any]:
        system = self._configs.system
        if parts.instruction:
            system += "\n" + parts.instruction
        messages = [{"role": "system", "content": system}, *history_messages(parts.history)]
        messages += input_messages(parts.input)
        if parts.user:
            messages[-1]["content"] = parts.user + messages[-1]["content"]
        made: dict[str, Any] = {"messages": messages}
        return {**made, "tools": list(parts.tools)} if parts.tools else made
