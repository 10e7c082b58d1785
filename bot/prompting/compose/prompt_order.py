"""Arrange a draft in SillyTavern's prompt order: prompts, and markers for what belongs to the card.

The system prompts at the head become the system message; what stands before the conversation and is
no part of it follows as messages of their own. Prompts with a depth stand within the conversation.
Those behind it are the last messages: an assistant's is the beginning of the answer.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bot.chat.prompt import Message
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.cards.macros import Macros
from bot.prompting.compose.lore import DeepMessage, insert_messages
from bot.prompting.draft.draft import Draft, PromptPart
from bot.prompting.presets.preset import OrderedPrompt, Preset

_ROLES = ("assistant", "user", "system")  # at one depth and order; the last one weighs most
_MARKED_FIELDS = {
    "charDescription": "description",
    "charPersonality": "personality",
    "scenario": "scenario",
    "personaDescription": "persona",
}
_PERSONA = re.compile(r"\{\{\s*persona\s*\}\}", re.IGNORECASE)
_SUMMARY = re.compile(r"\{\{\s*summary\s*\}\}", re.IGNORECASE)


@frozen_dataclass
class OrderedLore:
    """The active lore, for the markers that name its places."""

    before: Sequence[PromptPart]
    after: Sequence[PromptPart]
    examples_top: Sequence[PromptPart]
    examples_bottom: Sequence[PromptPart]


@frozen_dataclass
class _Filled:
    """A prompt with its text; several parts if it is lore, which may be dropped."""

    prompt: OrderedPrompt
    parts: Sequence[PromptPart]

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts)

    @property
    def message(self) -> Message:
        return Message(self.prompt.role, self.text)


def places_persona(prompts: Iterable[OrderedPrompt]) -> bool:
    """Whether these prompts have a place for what people say of themselves (`/me`)."""
    return any(
        one.marker == "personaDescription" or _PERSONA.search(one.content) for one in prompts
    )


def places_summary(prompts: Iterable[OrderedPrompt]) -> bool:
    """Whether a prompt shows the summary of the conversation itself."""
    return any(_SUMMARY.search(one.content) for one in prompts)


def arrange_prompts(draft: Draft, preset: Preset, macros: Macros, lore: OrderedLore) -> Draft:
    """Return the draft with the prompts of a preset in their order; its system parts are replaced.

    The pinned messages of the draft are the example dialogues.
    """
    filled = list(_fill(preset, macros, lore))
    markers = [one.prompt.marker for one in filled]
    middle = markers.index("chatHistory") if "chatHistory" in markers else len(filled)
    outside = [(at, one) for at, one in enumerate(filled) if one.prompt.depth is None]
    before = [one for at, one in outside if at < middle]
    after = [one for at, one in outside if at > middle and one.text.strip()]
    head = next((at for at, one in enumerate(before) if not _is_system(one)), len(before))
    deep = [one for one in filled if one.prompt.depth is not None and one.text.strip()]
    newest = [one.message for depth, one in _at_depths(deep) if depth == 0]
    within = [
        DeepMessage(depth, one.message, _name(one)) for depth, one in _at_depths(deep) if depth
    ]
    early = [] if draft.history else [one.message for one in within]
    system = [part for one in before[:head] for part in one.parts if part.text.strip()]
    pinned = _messages_before(before[head:], draft.pinned, lore)
    return replace(
        draft,
        system=tuple(system),
        pinned=(*pinned, *early),
        history=insert_messages(within, draft.history),
        closing=(*newest, *(one.message for one in after)),
    )


def _fill(preset: Preset, macros: Macros, lore: OrderedLore) -> Iterator[_Filled]:
    for prompt in preset.prompts:
        match prompt.marker:
            case "worldInfoBefore":
                yield _Filled(prompt, _formatted(prompt, lore.before))
            case "worldInfoAfter":
                yield _Filled(prompt, _formatted(prompt, lore.after))
            case "chatHistory" | "dialogueExamples":
                yield _Filled(prompt, ())
            case _:
                text = _text(prompt, preset, macros)
                section = "persona" if prompt.marker in _MARKED_FIELDS else "system"
                yield _Filled(prompt, [PromptPart(section, text, required=True)] if text else ())


def _text(prompt: OrderedPrompt, preset: Preset, macros: Macros) -> str:
    if prompt.marker in _MARKED_FIELDS:
        value = macros.fields.get(_MARKED_FIELDS[prompt.marker], "")
        return macros.expand(prompt.content).strip() if value and prompt.content else value
    own = None
    if prompt.marker == "main":
        own = macros.fields.get("charprompt")
    elif prompt.marker == "jailbreak":
        own = preset.post_history_instructions
    if not own:
        return macros.expand(prompt.content).strip()
    original = macros.expand(prompt.content).strip() if "{{" in own else ""
    given = replace(macros, fields={**macros.fields, "original": original})
    return given.expand(own).strip()


def _formatted(prompt: OrderedPrompt, parts: Sequence[PromptPart]) -> Sequence[PromptPart]:
    """Put lore into the format of its marker, `[Details: {0}]`."""
    start, _, end = prompt.content.partition("{0}")
    if not parts or "{0}" not in prompt.content:
        return parts
    first, *rest = parts
    *others, last = replace(first, text=start + first.text), *rest
    return [*others, replace(last, text=last.text + end)]


def _is_system(one: _Filled) -> bool:
    """Whether it is a part of the system message, as long as nothing else came before."""
    if one.prompt.marker == "dialogueExamples":
        return False
    return one.prompt.role == "system" or not one.text.strip()


def _messages_before(
    filled: Sequence[_Filled], examples: Sequence[Message], lore: OrderedLore
) -> list[Message]:
    """Return the messages behind the system message; neighbors of the role "system" are joined."""
    found: list[Message] = []
    for one in filled:
        messages = [one.message] if one.text.strip() else []
        if one.prompt.marker == "dialogueExamples":
            messages = [*_lore_message(lore.examples_top), *examples]
            messages += _lore_message(lore.examples_bottom)
        for message in messages:
            if found and found[-1].role == message.role == "system":
                joined = f"{found[-1].content}\n\n{message.content}"
                found[-1] = replace(found[-1], content=joined)
            else:
                found.append(message)
    return found


def _lore_message(parts: Sequence[PromptPart]) -> list[Message]:
    text = "\n".join(part.text for part in parts)
    return [Message("system", text)] if text else []


def _at_depths(filled: Sequence[_Filled]) -> Iterator[tuple[int, _Filled]]:
    """Yield prompts as they follow each other: by order, then by role; equal ones are joined."""
    groups: dict[tuple[int, int, int], list[_Filled]] = defaultdict(list)
    for one in filled:
        prompt = one.prompt
        groups[-(prompt.depth or 0), prompt.order, _ROLES.index(prompt.role)].append(one)
    for (depth, _, _), group in sorted(groups.items(), key=lambda item: item[0]):
        parts = [part for one in group for part in one.parts]
        text = "\n".join(part.text for part in parts)
        yield -depth, replace(group[0], parts=[replace(parts[0], text=text)])


def _name(one: _Filled) -> str:
    return one.prompt.name or "prompt"
