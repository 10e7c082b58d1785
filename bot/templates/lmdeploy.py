"""The chat templates of LMDeploy 0.6.4, and five from its documentation (lmdeploy.toml)."""

import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from bot.templates.registry import register
from bot.templates.role_template import (
    BaseTemplate,
    Message,
    RoleTemplate,
    UnsupportedCapability,
    message_text,
)


class InternLMChat7B(RoleTemplate):
    """InternLM as in LMDeploy's documentation, which lacks `eoa` (the end of an answer)."""

    @override
    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        if self.capability != "chat":
            raise UnsupportedCapability(
                f"{type(self).__name__} does not support the capability {self.capability!r}"
            )
        opening_text = self._default_system_text() if sequence_start else "\n"
        return f"{opening_text}{self.user}{prompt}{self.eoh}{self.assistant}"


class DropLastCharacterTemplate(RoleTemplate):
    """Drops each prompt's last character (two if `messages2prompt` gets a str), like LMDeploy."""

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return super().get_prompt(prompt, sequence_start)[:-1]

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        return (super().messages2prompt(messages, sequence_start) or "")[:-1]


class StartTokenTemplate(RoleTemplate):
    """Writes `start` at the start of a sequence (Llama 3) or of every conversation (GLM)."""

    start: str
    starts_conversations: bool = False

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return (self.start if sequence_start else "") + super().get_prompt(prompt, sequence_start)

    @override
    def _render_conversation(self, messages: Sequence[Message], sequence_start: bool) -> str:
        start = self.start if sequence_start or self.starts_conversations else ""
        return start + super()._render_conversation(messages, sequence_start)


class ChatGLM2(BaseTemplate):
    """ChatGLM2 with numbered rounds; `get_prompt` takes successive calls for one conversation."""

    _user: str = "问："
    _eoh: str = "\n\n"
    _assistant: str = "答："
    _eoa: str = "\n\n"
    count: int = 0

    def __init__(self, **values: Any) -> None:
        fields = {f"_{name}": values.get(name) for name in ("user", "eoh", "assistant", "eoa")}
        super().__init__(**values, **{key: one for key, one in fields.items() if one is not None})

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        self.count += 1
        return self._render_round(self.count, prompt)

    @override
    def _render_conversation(self, messages: Sequence[Message], sequence_start: bool) -> str:
        blocks, round_count = [], 0
        for message in messages:
            if message["role"] == "user":
                round_count += 1
                blocks.append(self._render_round(round_count, message_text(message)))
            elif message["role"] == "assistant":
                blocks.append(message_text(message))
        return "".join(blocks)

    def _render_round(self, number: int, prompt: str) -> str:
        return f"[Round {number}]\n\n{self._user}{prompt}{self._eoh}{self._assistant}"


class CodeLlama(RoleTemplate):
    """Code Llama, which chats like Llama 2, completes text, or fills in text at `<FILL>`."""

    suffix_first: bool = False

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        supported_capabilities = ("completion", "infilling", "chat", "python")
        if self.capability not in supported_capabilities:
            raise UnsupportedCapability(
                f"the capability {self.capability!r} is not supported; "
                f"choose one of {', '.join(supported_capabilities)}"
            )
        if self.capability == "infilling" and self.stop_words is None:
            self.stop_words = ["<EOT>"]

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        if self.capability == "chat":
            return super().get_prompt(prompt, sequence_start)
        if self.capability != "infilling":
            return prompt
        prefix, suffix = prompt.split("<FILL>")
        if self.suffix_first:
            return f"<PRE> <SUF>{suffix} <MID> {prefix}"
        return f"<PRE> {prefix} <SUF>{suffix} <MID>"


class Llama31(StartTokenTemplate):
    """Llama 3.1, with dates in its default system text, and `<|eom_id|>` after tool calls."""

    knowledge: str
    tools: str  # as in LMDeploy; these templates offer no tools here
    eotools: str
    ipython: str
    eoi: str

    @override
    def _render_conversation(self, messages: Sequence[Message], sequence_start: bool) -> str:
        blocks = [self.start if sequence_start else ""]
        has_system = bool(messages) and messages[0]["role"] == "system"
        if sequence_start and messages and not has_system and self.meta_instruction is not None:
            blocks.append(f"{self.system}{self.knowledge}{self.meta_instruction}{self.eosys}")
        for message in messages:
            role, text = message["role"], message_text(message)
            prefix, suffix = self._affixes_of_role(role)
            calls_tool = role == "assistant" and ("<|python_tag|>" in text or "</function>" in text)
            blocks.append(f"{prefix}{text}{'<|eom_id|>' if calls_tool else suffix}")
        return self._with_assistant_prefix("".join(blocks), messages)

    @override
    def _affixes_by_role(self) -> dict[str, tuple[str, str]]:
        tool_affixes = (self.ipython, self.eoi)
        return {**super()._affixes_by_role(), "ipython": tool_affixes, "tool": tool_affixes}


class InternLM2(RoleTemplate):
    """InternLM2, with the role `environment` for tool results."""

    environment: str = "<|im_start|>environment\n"
    eoenv: str = "<|im_end|>\n"
    plugin: str = "<|plugin|>"
    interpreter: str = "<|interpreter|>"

    @override
    def _affixes_by_role(self) -> dict[str, tuple[str, str]]:
        tool_affixes = (self.environment, self.eoenv)
        return {**super()._affixes_by_role(), "environment": tool_affixes, "tool": tool_affixes}


class Qwen25(RoleTemplate):
    """Qwen2.5, with system text only at a sequence's start; a final assistant message is closed."""

    tools: str
    eotools: str

    @override
    def _render_conversation(self, messages: Sequence[Message], sequence_start: bool) -> str:
        has_system = bool(messages) and messages[0]["role"] == "system"
        system_text = message_text(messages[0]) if has_system else self.meta_instruction
        blocks = []
        if self.meta_instruction is not None and sequence_start:
            blocks.append(f"{self.system}{system_text}{self.eosys}")
        other_messages = messages[1:] if has_system else messages
        blocks += [
            self._render_message(message, other_messages[:index], other_messages[index + 1 :])
            for index, message in enumerate(other_messages)
        ]
        return "".join(blocks) + self.assistant

    def _render_message(
        self, message: Message, history: Sequence[Message], next_turns: Sequence[Message]
    ) -> str:
        match message["role"]:
            case "system" | "user" | "assistant" as role:
                return f"{self._affixes_of_role(role)[0]}{message_text(message)}{self.eosys}"
            case "tool":
                result = f"{self.separator}<tool_response>{self.separator}{message_text(message)}"
                opening_tag = (
                    "" if history and history[-1]["role"] == "tool" else "<|im_start|>user"
                )
                closing_tag = "" if next_turns and next_turns[0]["role"] == "tool" else self.eosys
                return f"{opening_tag}{result}{self.separator}</tool_response>{closing_tag}"
            case _:
                return ""


def _register_all() -> None:
    catalog = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for template in catalog["template"]:
        names = template.pop("names")
        template_class = globals()[template.pop("class", "RoleTemplate")]
        base_values = catalog["base"].get(template.pop("like", ""), {})
        none_values = dict.fromkeys(template.pop("unset", []))
        register(*names)(partial(template_class, **base_values | template | none_values))


_register_all()
