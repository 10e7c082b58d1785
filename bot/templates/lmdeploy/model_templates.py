"""The kinds of LMDeploy's templates: one for each model family, and those with tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from bot.templates.role_template import (
    BaseTemplate,
    Message,
    RoleTemplate,
    UnknownRole,
    UnsupportedCapability,
    message_text,
)


class InternLMChat7B(RoleTemplate):
    """InternLM as in LMDeploy's document, with the `eoa` that the document lacks."""

    @override
    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        if self.capability != "chat":
            raise UnsupportedCapability(
                f"{type(self).__name__} does not support the capability {self.capability!r}"
            )
        opening = self._default_system_text() if sequence_start else "\n"
        return f"{opening}{self.user}{prompt}{self.eoh}{self.assistant}"


class InternLMChat7B8K(InternLMChat7B):
    pass


class InternLM20B(BaseTemplate):
    pass


class DropLastCharacterTemplate(RoleTemplate):
    """Drops the last character of each prompt: the space that these models write themselves.

    It is dropped twice where one method calls the other, as in LMDeploy.
    """

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return super().get_prompt(prompt, sequence_start)[:-1]

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        return super().messages2prompt(messages, sequence_start)[:-1]


class Llama3(RoleTemplate):
    """Writes `<|begin_of_text|>` at the start of a sequence."""

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return begin_of_text(sequence_start) + super().get_prompt(prompt, sequence_start)

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        prompt = super().messages2prompt(messages, sequence_start)
        return prompt if isinstance(messages, str) else begin_of_text(sequence_start) + prompt


def begin_of_text(sequence_start: bool) -> str:
    return "<|begin_of_text|>" if sequence_start else ""


class GLM(RoleTemplate):
    """ChatGLM3 and GLM-4: a conversation always starts with the tokens in `start`."""

    def __init__(self, start: str, **words: Any) -> None:
        super().__init__(**words)
        self.start = start

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return (self.start if sequence_start else "") + super().get_prompt(prompt, sequence_start)

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        prompt = super().messages2prompt(messages, sequence_start)
        return prompt if isinstance(messages, str) else self.start + prompt


class ChatGLM2(BaseTemplate):
    """ChatGLM2 numbers the rounds. `get_prompt` counts them: use one instance per sequence."""

    def __init__(
        self,
        user: str = "问：",
        eoh: str = "\n\n",
        assistant: str = "答：",
        eoa: str = "\n\n",
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        self._user = user
        self._eoh = eoh
        self._assistant = assistant
        self._eoa = eoa
        self.count = 0

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        self.count += 1
        return self._round(self.count, prompt)

    @override
    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str:
        """Return the prompt of a conversation, without system messages and unknown roles."""
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        blocks, rounds = [], 0
        for message in messages:
            match message["role"]:
                case "user":
                    rounds += 1
                    blocks.append(self._round(rounds, message_text(message)))
                case "assistant":
                    blocks.append(message_text(message))
                case _:
                    pass
        return "".join(blocks)

    def _round(self, number: int, prompt: str) -> str:
        return f"[Round {number}]\n\n{self._user}{prompt}{self._eoh}{self._assistant}"


class CodeLlama(RoleTemplate):
    """Code Llama: chats like Llama 2, completes, or fills in at `<FILL>`."""

    CAPABILITIES = ("completion", "infilling", "chat", "python")

    def __init__(self, suffix_first: bool = False, **words: Any) -> None:
        super().__init__(**words)
        if self.capability not in self.CAPABILITIES:
            raise UnsupportedCapability(
                f"the capability {self.capability!r} is not supported; "
                f"choose one of {', '.join(self.CAPABILITIES)}"
            )
        self.suffix_first = suffix_first
        if self.capability == "infilling" and self.stop_words is None:
            self.stop_words = ["<EOT>"]

    @override
    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        match self.capability:
            case "infilling":
                return self._infill(prompt)
            case "chat":
                return super().get_prompt(prompt, sequence_start)
            case _:
                return prompt

    def _infill(self, prompt: str) -> str:
        prefix, suffix = prompt.split("<FILL>")
        if self.suffix_first:
            return f"<PRE> <SUF>{suffix} <MID> {prefix}"
        return f"<PRE> {prefix} <SUF>{suffix} <MID>"


Tools = Sequence[Mapping[str, Any]]


class Llama31(Llama3):
    """Llama 3.1: dates in the default system text, tools, and turns that continue after a call."""

    def __init__(
        self, knowledge: str, tools: str, eotools: str, ipython: str, eoi: str, **words: Any
    ) -> None:
        super().__init__(**words)
        self.knowledge = knowledge
        self.tools = tools
        self.eotools = eotools
        self.ipython = ipython
        self.eoi = eoi

    @override
    def messages2prompt(
        self,
        messages: str | Sequence[Message],
        sequence_start: bool = True,
        tools: Tools | None = None,
    ) -> str:
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        prefixes, suffixes = self._prefixes(), self._suffixes()
        tool_list = "" if tools is None else f"{self.tools}{_describe_tools(tools)}{self.eotools}"
        blocks = [begin_of_text(sequence_start)]
        has_system = bool(messages) and messages[0]["role"] == "system"
        if sequence_start and messages and not has_system and self.meta_instruction is not None:
            blocks.append(
                f"{self.system}{self.knowledge}{tool_list}{self.meta_instruction}{self.eosys}"
            )
        for message in messages:
            role, text = message["role"], message_text(message)
            if role not in prefixes:
                raise UnknownRole(role, tuple(prefixes))
            calls_tool = role == "assistant" and ("<|python_tag|>" in text or "</function>" in text)
            blocks += [prefixes[role], tool_list if role == "system" else "", text]
            blocks.append("<|eom_id|>" if calls_tool else suffixes[role])
        return self._with_assistant_prefix("".join(blocks), messages)

    @override
    def _prefixes(self) -> dict[str, str]:
        return {**super()._prefixes(), "ipython": self.ipython, "tool": self.ipython}

    @override
    def _suffixes(self) -> dict[str, str]:
        return {**super()._suffixes(), "ipython": self.eoi, "tool": self.eoi}


def _describe_tools(tools: Tools) -> str:
    return "".join(
        f"Use the function '{tool['name']}' to: {tool['description']}\n{_json(tool)}\n\n"
        for tool in tools
    )


class InternLM2(RoleTemplate):
    """InternLM2: plugins, an interpreter, and the `environment` role for their results."""

    def __init__(
        self,
        environment: str = "<|im_start|>environment\n",
        eoenv: str = "<|im_end|>\n",
        plugin: str = "<|plugin|>",
        interpreter: str = "<|interpreter|>",
        **words: Any,
    ) -> None:
        super().__init__(**words)
        self.environment = environment
        self.eoenv = eoenv
        self.plugin = plugin
        self.interpreter = interpreter

    @override
    def messages2prompt(
        self,
        messages: str | Sequence[Message],
        sequence_start: bool = True,
        tools: Tools | None = None,
    ) -> str:
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        has_system = bool(messages) and messages[0]["role"] == "system"
        rendered = [self._render_message(message) for message in messages]
        if tools:
            plugin_list = {"role": "system", "name": "plugin", "content": _json(tools)}
            rendered.insert(int(has_system), self._render_message(plugin_list))
        if sequence_start and messages and not has_system:
            rendered.insert(0, self._default_system_text())
        return self._with_assistant_prefix("".join(rendered), messages)

    def _render_message(self, message: Message) -> str:
        role, text = message["role"], message_text(message)
        prefixes = self._prefixes()
        if role not in prefixes:
            raise UnknownRole(role, tuple(prefixes))
        if role == "assistant":
            text += "".join(
                self._render_call(call["function"]) for call in message.get("tool_calls") or ()
            )
        named = {"plugin": self.plugin, "interpreter": self.interpreter}.get(
            message.get("name", "")
        )
        opening = prefixes[role] if named is None else f"{prefixes[role].strip()} name={named}\n"
        return f"{opening}{text}{self._suffixes()[role]}"

    def _render_call(self, function: Mapping[str, Any]) -> str:
        arguments = function.get("parameters", function.get("arguments", ""))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        call = {"name": function.get("name", ""), "parameters": arguments}
        return f"<|action_start|><|plugin|>\n{_json(call)}<|action_end|>"

    @override
    def _prefixes(self) -> dict[str, str]:
        return {**super()._prefixes(), "environment": self.environment, "tool": self.environment}

    @override
    def _suffixes(self) -> dict[str, str]:
        return {**super()._suffixes(), "environment": self.eoenv, "tool": self.eoenv}


class Qwen25(RoleTemplate):
    """Qwen2.5: tools; a system text only at the start of a sequence; all answers are closed."""

    def __init__(self, tools: str, eotools: str, **words: Any) -> None:
        super().__init__(**words)
        self.tools = tools
        self.eotools = eotools

    @override
    def messages2prompt(
        self,
        messages: str | Sequence[Message],
        sequence_start: bool = True,
        tools: Tools | None = None,
    ) -> str:
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        blocks = []
        has_system = bool(messages) and messages[0]["role"] == "system"
        system = message_text(messages[0]) if has_system else self.meta_instruction
        if tools is not None:
            offered = "".join(
                f'{self.separator}{{"type": "function", "function": {_json(tool)}}}'
                for tool in tools
            )
            blocks.append(f"{self.system}{system}{self.tools}{offered}{self.eotools}{self.eosys}")
        elif self.meta_instruction is not None and sequence_start:
            blocks.append(f"{self.system}{system}{self.eosys}")
        rest = messages[1:] if has_system else messages
        blocks += [
            self._render_message(message, rest[:index], rest[index + 1 :])
            for index, message in enumerate(rest)
        ]
        return "".join(blocks) + self.assistant

    def _render_message(
        self, message: Message, before: Sequence[Message], after: Sequence[Message]
    ) -> str:
        match message["role"]:
            case "assistant" if message.get("tool_calls") is not None:
                return self._render_calls(message)
            case "system" | "user" | "assistant" as role:
                return f"{self._prefixes()[role]}{message_text(message)}{self.eosys}"
            case "tool":
                result = f"{self.separator}<tool_response>{self.separator}{message_text(message)}"
                opening = "" if before and before[-1]["role"] == "tool" else "<|im_start|>user"
                closing = "" if after and after[0]["role"] == "tool" else self.eosys
                return f"{opening}{result}{self.separator}</tool_response>{closing}"
            case _:
                return ""

    def _render_calls(self, message: Message) -> str:
        lines = ["<|im_start|>assistant"]
        if message.get("content") is not None:
            lines.append(message_text(message))
        for call in message["tool_calls"]:
            function = call.get("function", call)
            arguments = function["arguments"]
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            called = f'{{"name": "{function["name"]}", "arguments": {_json(arguments)}}}'
            lines += ["<tool_call>", called, "</tool_call>"]
        return self.separator.join(lines) + self.eosys


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
