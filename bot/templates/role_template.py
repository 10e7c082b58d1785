"""Chat templates that consist of texts for each role: RodelAgent's and LMDeploy's."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from bot.errors import TemplateError
from bot.templates.registry import get, names, register

# The default templates end in a newline, so that blocks joined by newlines have blank lines between
# them, as in the sample in RodelAgent's document. Custom templates need not do so.
DEFAULT_TEMPLATES = {
    "system": "System: {{system}}\n",
    "user": "User: {{user}}\n",
    "assistant": "Assistant: {{assistant}}\n",
}
DEFAULT_END_TEMPLATE = "Assistant: "


class StringTemplate:
    """Renders each message with its role's template, and then the end template for the answer.

    None means the default template; "" is an empty template. The placeholder is `{{user}}`
    (exactly: no spaces, lower case) in the user's template, and `{{system}}` or `{{assistant}}` in
    the others. Placeholders in messages are not expanded.
    """

    def __init__(
        self,
        system_template: str | None = None,
        user_template: str | None = None,
        assistant_template: str | None = None,
        end_template: str | None = None,
    ) -> None:
        texts = {"system": system_template, "user": user_template, "assistant": assistant_template}
        self.templates: dict[str, str] = {
            role: DEFAULT_TEMPLATES[role] if template is None else template
            for role, template in texts.items()
        }
        self.end_template = DEFAULT_END_TEMPLATE if end_template is None else end_template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return a prompt: a block per message and the end template, joined by newlines.

        A message with an unknown role becomes the block "unknown".
        """
        blocks = [self._render_block(message) for message in messages]
        return "\n".join([*blocks, self.end_template])

    def _render_block(self, message: Mapping[str, str]) -> str:
        role = message["role"]
        if role not in self.templates:
            return "unknown"
        return self.templates[role].replace("{{" + role + "}}", message["content"])

    @property
    def fixed_texts(self) -> tuple[str, ...]:
        """The texts around placeholders, which are removed from answers."""
        texts = [
            text.strip()
            for role, template in self.templates.items()
            if "{{" + role + "}}" in template
            for text in template.split("{{" + role + "}}")
        ]
        return tuple(dict.fromkeys(text for text in texts if text))


Message = Mapping[str, Any]

SAMPLING_KEYS = {"session_len", "top_p", "top_k", "temperature", "repetition_penalty"}
UNUSED_KEYS = {"model_path", "tool", "eotool"}  # keys of newer versions that have no effect here


class UnknownRole(TemplateError, ValueError):
    """A message has a role that the template has no texts for."""

    def __init__(self, role: object, known_roles: Sequence[str]) -> None:
        super().__init__(f"no role {role!r} in this template; use one of {', '.join(known_roles)}")


class UnsupportedCapability(TemplateError, AssertionError):
    """A template does not support the requested `capability`; raised as in LMDeploy."""


@register("base", "llama", "falcon", "internlm-7b")
class BaseTemplate:
    """A template for base models, with sampling defaults but no texts around roles."""

    session_len: int = 2048
    top_p: float = 0.8
    top_k: int | None = None
    temperature: float = 0.8
    repetition_penalty: float = 1.0
    capability: str = "chat"
    stop_words: Sequence[str] | None = None

    def __init__(self, **values: Any) -> None:
        """Set attributes; ignore other templates' keys, which LMDeploy's JSON may contain."""
        for template_class in reversed(type(self).__mro__):
            for name in vars(template_class).get("__annotations__", ()):
                if name in values or hasattr(template_class, name):
                    vars(self)[name] = values.get(name, getattr(template_class, name, None))

    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        """Return the prompt of one user message; add the system text if `sequence_start`."""
        if self.capability == "completion":
            return prompt
        return self.decorate_prompt(prompt, sequence_start)

    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        return prompt

    def messages2prompt(
        self, messages: str | Sequence[Message], sequence_start: bool = True
    ) -> str | None:
        """Return a conversation's prompt, or None for base models; raise `UnknownRole`."""
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        return self._render_conversation(messages, sequence_start)

    def _render_conversation(self, messages: Sequence[Message], sequence_start: bool) -> str | None:
        return None


class RoleTemplate(BaseTemplate):
    """Writes fixed texts before and after each role's messages.

    `meta_instruction` is the default system text. It stands between `system` and `eosys`, which are
    omitted if it is None. User messages stand between `user` and `eoh`, and assistant messages
    between `assistant` and `eoa`, followed by `separator`. A final assistant message is left open
    for the model to continue.
    """

    system: str = ""
    meta_instruction: str | None = ""
    eosys: str = ""
    user: str = ""
    eoh: str = ""
    assistant: str = ""
    eoa: str = ""
    separator: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BaseTemplate:
        """Create a template from LMDeploy's JSON; raise `TemplateError` if it is invalid.

        If `model_name` is a registered template, the other keys override its values; otherwise
        they define a new template. A null value counts as missing.
        """
        values = {key: value for key, value in data.items() if value is not None}
        name = values.pop("model_name", "")
        if unknown_keys := sorted(values.keys() - JSON_KEYS):
            raise TemplateError.translatable(
                "unknown key {key} in a chat template; known: {known}",
                key=repr(unknown_keys[0]),
                known=", ".join(sorted(JSON_KEYS)),
            )
        for key in ROLE_TEXT_KEYS & values.keys():
            if not isinstance(values[key], str):
                raise TemplateError.translatable(
                    "the key {key} of a chat template must be a string", key=repr(key)
                )
        if not _is_list_of_strings(values.get("stop_words", ())):
            raise TemplateError.translatable(
                "the key 'stop_words' of a chat template must be a list of strings"
            )
        factory = get(name) if name in names() else partial(cls)
        template, defaults = getattr(factory, "func", factory), getattr(factory, "keywords", {})
        if not (isinstance(template, type) and issubclass(template, BaseTemplate)):
            raise TemplateError.translatable(
                "{name} is a Jinja template, not one of LMDeploy's; choose another model_name",
                name=repr(name),
            )
        return template(**{**defaults, **values})

    @override
    def decorate_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        opening_text = self._default_system_text() if sequence_start else self.separator
        return f"{opening_text}{self.user}{prompt}{self.eoh}{self.assistant}"

    @override
    def _render_conversation(self, messages: Sequence[Message], sequence_start: bool) -> str:
        blocks = []
        if sequence_start and messages and messages[0]["role"] != "system":
            blocks.append(self._default_system_text())
        for message in messages:
            prefix, suffix = self._affixes_of_role(message["role"])
            blocks.append(f"{prefix}{message_text(message)}{suffix}")
        return self._with_assistant_prefix("".join(blocks), messages)

    def _default_system_text(self) -> str:
        if self.meta_instruction is None:
            return ""
        return f"{self.system}{self.meta_instruction}{self.eosys}"

    def _affixes_by_role(self) -> dict[str, tuple[str, str]]:
        return {
            "system": (self.system, self.eosys),
            "user": (self.user, self.eoh),
            "assistant": (self.assistant, self.eoa + self.separator),
        }

    def _affixes_of_role(self, role: str) -> tuple[str, str]:
        affixes_by_role = self._affixes_by_role()
        if role not in affixes_by_role:
            raise UnknownRole(role, tuple(affixes_by_role))
        return affixes_by_role[role]

    def _with_assistant_prefix(self, prompt: str, messages: Sequence[Message]) -> str:
        if messages and messages[-1]["role"] == "assistant":
            # As in LMDeploy, the slice counts from the end, so the prompt is empty if both `eoa`
            # and `separator` are.
            return prompt[: -len(self._affixes_of_role("assistant")[1])]
        return prompt + self.assistant


ROLE_TEXT_KEYS = set(RoleTemplate.__annotations__)
JSON_KEYS = ROLE_TEXT_KEYS | SAMPLING_KEYS | {"capability", "stop_words"} | UNUSED_KEYS


def _is_list_of_strings(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def message_text(message: Message) -> str:
    """Return a message's text; if it has parts, the first part's text, as in LMDeploy."""
    content = message["content"]
    return content if isinstance(content, str) else str(content[0]["text"])
