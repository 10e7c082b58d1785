"""Render string templates: one text per role, the form of RodelAgent's session presets.

The rules are in docs/sources.md#rodel.
"""

from collections.abc import Mapping, Sequence

# The default templates end in a newline, so that joining blocks with another one leaves a blank
# line between them, as in the sample of RodelAgent's document. Custom templates need not do so.
DEFAULT_TEMPLATES = {
    "system": "System: {{system}}\n",
    "user": "User: {{user}}\n",
    "assistant": "Assistant: {{assistant}}\n",
}
DEFAULT_END_TEMPLATE = "Assistant: "


class StringTemplate:
    """Renders each message with its role's template; the end template is what the model continues.

    A template that is None falls back to its default; an empty one stays empty. `{{user}}` (exactly
    so: no spaces, lower case) is the placeholder of the user's template, `{{system}}` and
    `{{assistant}}` are those of the others. Texts are inserted once: a placeholder in a message
    is not expanded.
    """

    def __init__(
        self,
        system_template: str | None = None,
        user_template: str | None = None,
        assistant_template: str | None = None,
        end_template: str | None = None,
    ) -> None:
        given = {"system": system_template, "user": user_template, "assistant": assistant_template}
        self.templates: dict[str, str] = {
            role: DEFAULT_TEMPLATES[role] if template is None else template
            for role, template in given.items()
        }
        self.end_template = DEFAULT_END_TEMPLATE if end_template is None else end_template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt: one block per message and the end template, joined with newlines.

        Any other role renders as the word `unknown`, as in RodelAgent.
        """
        blocks = [self._block(message) for message in messages]
        return "\n".join([*blocks, self.end_template])

    def _block(self, message: Mapping[str, str]) -> str:
        role = message["role"]
        if role not in self.templates:
            return "unknown"
        return self.templates[role].replace("{{" + role + "}}", message["content"])

    @property
    def keywords(self) -> tuple[str, ...]:
        """Return the templates' texts around the placeholders, which are removed from answers.

        A template without its placeholder has none.
        """
        texts = [
            text.strip()
            for role, template in self.templates.items()
            if "{{" + role + "}}" in template
            for text in template.split("{{" + role + "}}")
        ]
        return tuple(dict.fromkeys(text for text in texts if text))
