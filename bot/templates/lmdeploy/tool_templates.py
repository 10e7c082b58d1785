"""Templates of LMDeploy 0.6.4 for models that call tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from bot.templates.lmdeploy.model_templates import Llama3, begin_of_text
from bot.templates.lmdeploy.role_template import Message, RoleTemplate, UnknownRole, message_text

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
