"""LazyLLM's Alpaca prompter: one instruction, one answer."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from bot.errors import UserError
from bot.prompting.prompters.form_fields import extra_keys_section
from bot.prompting.prompters.prompt_text import Tools, tools_text
from bot.prompting.prompters.prompter import FilledPrompt, Instruction, Prompter

_PREAMBLE = (
    "Below is an instruction that describes a task, paired with extra messages such as input that"
    " provides further context if possible. Write a response that appropriately completes the"
    " request.\n\n### Instruction:\n"
)


class AlpacaPrompter(Prompter):
    """One instruction, one answer: every value has a form field, and there is no history."""

    def __init__(
        self,
        instruction: Instruction | None = None,
        extra_keys: str | Sequence[str] | None = None,
        tools: Tools | None = None,
    ) -> None:
        extra = extra_keys_section(extra_keys)
        match instruction:
            case Mapping():
                system_part = _PREAMBLE + instruction.get("system", "")
                user_part = instruction.get("user", "") + extra
            case _:
                system_part, user_part = f"{_PREAMBLE}{instruction or ''}\n\n{extra}", ""
        super().__init__(system_part, user_part, tools)

    @override
    def _check(self, parts: FilledPrompt) -> None:
        if parts.history:
            raise UserError("AlpacaPrompter takes no history; use ChatPrompter")
        if parts.input:
            raise UserError(
                "AlpacaPrompter takes no input without a form field;"
                " write {input} into the instruction, or name it in extra_keys"
            )

    @override
    def _as_text(self, parts: FilledPrompt) -> str:
        return (
            f"{self._configs.system}\n{parts.instruction}\n{tools_text(parts.tools)}\n{parts.user}"
            "### Response:\n"
        )

    @override
    def _answer_marker(self) -> str:
        return "### Response:"
