"""LazyLLM's chat prompter: an instruction, a history and the newest turn of the user."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from bot.prompting.prompters.form_fields import extra_keys_section
from bot.prompting.prompters.prompt_text import History, Tools, history_text, input_text, tools_text
from bot.prompting.prompters.prompter import FilledPrompt, Instruction, Prompter


class ChatPrompter(Prompter):
    """A conversation: input without a form field is the newest user turn, after the history."""

    def __init__(
        self,
        instruction: Instruction | None = None,
        extra_keys: str | Sequence[str] | None = None,
        tools: Tools | None = None,
        history: History | None = None,
    ) -> None:
        extra = extra_keys_section(extra_keys)
        match instruction:
            case Mapping():
                system_part = instruction.get("system", "")
                user_part = instruction.get("user", "") + extra
            case None | "":  # LazyLLM drops the extra keys here as well
                system_part, user_part = "", ""
            case _:
                system_part, user_part = f"{instruction}\n{extra}\n", ""
        super().__init__(system_part, user_part, tools)
        self._history = history or ()

    @override
    def _check(self, parts: FilledPrompt) -> None:
        pass  # a history and any input are allowed

    @override
    def _as_messages(self, parts: FilledPrompt) -> dict[str, Any]:
        return super()._as_messages(
            dataclasses.replace(parts, history=[*self._history, *parts.history])
        )

    @override
    def _as_text(self, parts: FilledPrompt) -> str:
        configs = self._configs
        soh, text, eoh = input_text(parts.input, configs)
        history = history_text(self._history, configs) + history_text(parts.history, configs)
        system = f"{configs.system}{parts.instruction}{tools_text(parts.tools)}"
        return (
            f"{configs.sos}{system}{configs.eos}\n\n"
            f"{history}\n{soh}\n{parts.user}{text}\n{eoh}{configs.soa}\n"
        )

    @override
    def _answer_marker(self) -> str:
        return self._configs.soa
