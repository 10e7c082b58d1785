"""String templates: one line of text per role, as RodelAgent's session presets write them."""

from collections.abc import Mapping, Sequence

# The built-in templates end in a newline, so that joining them with one leaves a blank line
# between blocks, as the sample in RodelAgent's document has it; templates of one's own need not.
DEFAULTS = {
    "system": "System: {{system}}\n",
    "user": "User: {{user}}\n",
    "assistant": "Assistant: {{assistant}}\n",
}
DEFAULT_END = "Assistant: "


class StringTemplate:
    """Renders each message with its role's template and ends with the text the model goes on from.

    A template that is None falls back to its default; an empty one stays empty. `{{user}}` (exactly
    so: no spaces, lower case) stands for the text in the user's template, `{{system}}` and
    `{{assistant}}` in theirs. Texts are put in once: a placeholder in a message stays as it is.
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
            role: DEFAULTS[role] if template is None else template
            for role, template in given.items()
        }
        self.end_template = DEFAULT_END if end_template is None else end_template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt: a block for each message and the end, joined by a newline.

        A role of another name renders as the word `unknown`, as in RodelAgent.
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
        """The templates' own words around the placeholders: what is cut from a model's answer.

        A template without its placeholder has none.
        """
        pieces = [
            piece.strip()
            for role, template in self.templates.items()
            if "{{" + role + "}}" in template
            for piece in template.split("{{" + role + "}}")
        ]
        return tuple(dict.fromkeys(piece for piece in pieces if piece))
