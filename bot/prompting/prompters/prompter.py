"""LazyLLM's prompters: an instruction with slots becomes messages for an API or text for a model.

They do what LazyLLM does at commit 6b891d16d, whose document asks for them (SEEDS.md, 004), but the
parts stay apart until the end: no text from a caller can move from one role to another.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, overload

from bot.errors import UserError
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


@dataclasses.dataclass(frozen=True, slots=True)
class FilledPrompt:
    """What one call has made of its arguments, each part by itself."""

    instruction: str
    user: str
    input: Any
    history: History
    tools: Tools


class Prompter(ABC):
    def __init__(self, system_part: str, user_part: str, tools: Tools | None) -> None:
        self._system_part = system_part
        self._user_part = user_part
        self._tools = tools
        self._configs = ModelConfigs()

    @property
    def fields(self) -> tuple[str, ...]:
        """Name what a caller has to give."""
        names = field_names(self._system_part, self._user_part)
        return tuple(name for name in names if name not in self._tool_tokens())

    def set_model_configs(self, **configs: object) -> None:
        """Take over a model's words by their names in ModelConfigs; None leaves one as it is."""
        known = {field.name for field in dataclasses.fields(ModelConfigs)}
        for name in configs:
            if name not in known | _IGNORED_CONFIGS:
                raise TypeError(f"no model config {name!r}; there are {', '.join(sorted(known))}")
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
        input: Input | None = None,  # noqa: A002 # LazyLLM's word
        history: History | None = None,
        tools: Tools | None = None,
        label: str | None = None,
        *,
        return_dict: bool = False,
    ) -> str | dict[str, Any]:
        """Return the text for a local model, or `messages` (and `tools`) for an API.

        `history` is pairs of question and answer, or messages with roles; `label` is the answer
        that a training text ends with. Raises UserError when input and slots do not fit.
        """
        if self._tools and tools is not None:
            raise UserError("the tools are fixed already; leave them out of the call")
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
        """Cut away the prompt that a model has repeated in front of its answer."""
        if input and output.startswith(input):
            return output[len(input) :]
        mark = self._answer_mark()
        return output.rpartition(mark)[2] if mark else output

    def _tool_tokens(self) -> dict[str, str]:
        """Slots that the model fills, not the caller."""
        values = {name: str(getattr(self._configs, name)) for name in _TOOL_TOKENS}
        return {name: value for name, value in values.items() if value}

    @abstractmethod
    def _check(self, parts: FilledPrompt) -> None: ...

    @abstractmethod
    def _as_text(self, parts: FilledPrompt) -> str: ...

    @abstractmethod
    def _answer_mark(self) -> str: ...

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
