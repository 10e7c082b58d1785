"""The models of LMDeploy 0.6.4 that call tools: each offers, calls and answers in its own way."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from bot.templates.lmdeploy.model_templates import Llama3, begin_of_text
from bot.templates.lmdeploy.role_template import Message, RoleTemplate, UnknownRole, text_of

Tools = Sequence[Mapping[str, Any]]


class Llama31(Llama3):
    """Llama 3.1: dates in the default system text, tools, and answers that go on after a call."""

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
        begin, end = self._begin(), self._end()
        offer = "" if tools is None else f"{self.tools}{_llama_tools(tools)}{self.eotools}"
        blocks = [begin_of_text(sequence_start)]
        brings_system = bool(messages) and messages[0]["role"] == "system"
        if sequence_start and messages and not brings_system and self.meta_instruction is not None:
            blocks.append(
                f"{self.system}{self.knowledge}{offer}{self.meta_instruction}{self.eosys}"
            )
        for message in messages:
            role, text = message["role"], text_of(message)
            if role not in begin:
                raise UnknownRole(role, tuple(begin))
            calls = role == "assistant" and ("<|python_tag|>" in text or "</function>" in text)
            blocks += [begin[role], offer if role == "system" else "", text]
            blocks.append("<|eom_id|>" if calls else end[role])
        return self._closed("".join(blocks), messages)

    @override
    def _begin(self) -> dict[str, str]:
        return {**super()._begin(), "ipython": self.ipython, "tool": self.ipython}

    @override
    def _end(self) -> dict[str, str]:
        return {**super()._end(), "ipython": self.eoi, "tool": self.eoi}


def _llama_tools(tools: Tools) -> str:
    return "".join(
        f"Use the function '{tool['name']}' to: {tool['description']}\n{_json(tool)}\n\n"
        for tool in tools
    )


class InternLM2(RoleTemplate):
    """InternLM2: plugins, an interpreter, and an environment that answers their calls."""

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
        brings_system = bool(messages) and messages[0]["role"] == "system"
        written = [self._written(message) for message in messages]
        if tools:
            offer = {"role": "system", "name": "plugin", "content": _json(tools)}
            written.insert(int(brings_system), self._written(offer))
        if sequence_start and messages and not brings_system:
            written.insert(0, self._default_system())
        return self._closed("".join(written), messages)

    def _written(self, message: Message) -> str:
        role, text = message["role"], text_of(message)
        begin = self._begin()
        if role not in begin:
            raise UnknownRole(role, tuple(begin))
        if role == "assistant":
            text += "".join(
                self._call(call["function"]) for call in message.get("tool_calls") or ()
            )
        named = {"plugin": self.plugin, "interpreter": self.interpreter}.get(
            message.get("name", "")
        )
        opening = begin[role] if named is None else f"{begin[role].strip()} name={named}\n"
        return f"{opening}{text}{self._end()[role]}"

    def _call(self, function: Mapping[str, Any]) -> str:
        arguments = function.get("parameters", function.get("arguments", ""))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        call = {"name": function.get("name", ""), "parameters": arguments}
        return f"<|action_start|><|plugin|>\n{_json(call)}<|action_end|>"

    @override
    def _begin(self) -> dict[str, str]:
        return {**super()._begin(), "environment": self.environment, "tool": self.environment}

    @override
    def _end(self) -> dict[str, str]:
        return {**super()._end(), "environment": self.eoenv, "tool": self.eoenv}


class Qwen25(RoleTemplate):
    """Qwen2.5: tools; a system text only in a sequence's first round; every answer is closed."""

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
        brings_system = bool(messages) and messages[0]["role"] == "system"
        system = text_of(messages[0]) if brings_system else self.meta_instruction
        if tools is not None:
            offered = "".join(
                f'{self.separator}{{"type": "function", "function": {_json(tool)}}}'
                for tool in tools
            )
            blocks.append(f"{self.system}{system}{self.tools}{offered}{self.eotools}{self.eosys}")
        elif self.meta_instruction is not None and sequence_start:
            blocks.append(f"{self.system}{system}{self.eosys}")
        rest = messages[1:] if brings_system else messages
        blocks += [
            self._written(message, rest[:index], rest[index + 1 :])
            for index, message in enumerate(rest)
        ]
        return "".join(blocks) + self.assistant

    def _written(
        self, message: Message, before: Sequence[Message], after: Sequence[Message]
    ) -> str:
        match message["role"]:
            case "assistant" if message.get("tool_calls") is not None:
                return self._calls(message)
            case "system" | "user" | "assistant" as role:
                return f"{self._begin()[role]}{text_of(message)}{self.eosys}"
            case "tool":
                result = f"{self.separator}<tool_response>{self.separator}{text_of(message)}"
                opening = "" if before and before[-1]["role"] == "tool" else "<|im_start|>user"
                closing = "" if after and after[0]["role"] == "tool" else self.eosys
                return f"{opening}{result}{self.separator}</tool_response>{closing}"
            case _:
                return ""

    def _calls(self, message: Message) -> str:
        lines = ["<|im_start|>assistant"]
        if message.get("content") is not None:
            lines.append(text_of(message))
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
