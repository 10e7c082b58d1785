"""Apply a card to a draft: expand macros, insert lorebook entries, and describe the speakers.

The result has this order ("lore" means lorebook entries; depth counts messages from the end):

1. system message: system, lore before the character, persona, lore after it, lore before examples
2. examples, lore after them, and history with lore at its depth
3. newest message: speakers, author's note and lore at depth 0, quote
4. the card's post-history instructions

A preset with its own prompt order uses that order instead, as in SillyTavern's prompt manager.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from bot.chat.prompt import Message
from bot.prompting.compose.card_macros import (
    DEFAULT_INSTRUCTIONS,
    DEPTH_NOTE_ENTRY,
    CardMacros,
    build_card_macros,
    get_custom_instructions,
)
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.compose.instructions import PERSONA_FIELDS, find_persona_prefix
from bot.prompting.compose.lore import (
    build_deep_lore_messages,
    build_lore_parts_at,
    build_lore_parts_before_newest_message,
    build_parts_without_history,
    find_lore,
    insert_messages,
    join_outlet_texts,
    list_inactive_entries,
)
from bot.prompting.draft import Draft, PromptPart
from bot.prompting.lorebook.entries import EntryPosition, LoreResult
from bot.prompting.macros import Macros, convert_story_string
from bot.prompting.presets.preset import OrderedPrompt, Preset
from bot.prompting.speakers import format_personas, sanitize_persona
from bot.value_class import value_class

_EMPTY_LORE = LoreResult((), (), {}, 0, {})


def apply_card(draft: Draft, inputs: PromptInputs) -> Draft:
    preset = inputs.preset
    speaker_ids = (turn.speaker.id for turn in reversed(inputs.turns) if turn.speaker)
    speaker_descriptions = format_personas(speaker_ids, inputs.speakers.people, inputs.personas)
    instructions_or_story_string = preset.post_history_instructions or preset.story_string
    if preset.has_macros or preset.parsed_lorebook or instructions_or_story_string:
        draft = _apply_macros_and_lore(draft, inputs, speaker_descriptions)
    if speaker_descriptions and not (preset.has_prompt_order and _includes_persona(preset.prompts)):
        people_part = PromptPart("people", speaker_descriptions, priority=1)
        draft = replace(draft, context=(people_part, *draft.context))
    return draft


def _apply_macros_and_lore(draft: Draft, inputs: PromptInputs, speaker_descriptions: str) -> Draft:
    preset = inputs.preset
    macros = build_card_macros(inputs)
    if preset.has_macros:
        draft = _expand_persona(draft, macros.stable)
    macros = _add_card_fields(macros, draft, inputs)
    book = preset.parsed_lorebook
    lore = find_lore(book, inputs, macros.current) if book else _EMPTY_LORE
    macros = macros.with_values(
        join_outlet_texts(lore),
        wibefore=_join_parts(build_lore_parts_at(lore, EntryPosition.BEFORE_CHAR)),
        wiafter=_join_parts(build_lore_parts_at(lore, EntryPosition.AFTER_CHAR)),
    )
    if preset.has_macros:
        draft = _expand_macros(draft, macros.stable)
    if preset.has_prompt_order:
        return _apply_prompt_order(draft, inputs, macros, lore, speaker_descriptions)
    examples = _join_to_message(build_lore_parts_at(lore, EntryPosition.EXAMPLES_BOTTOM))
    draft = replace(draft, pinned_messages=(*draft.pinned_messages, *examples))
    return replace(
        _insert_deep_lore(draft, lore),
        system=_arrange_system_parts(draft.system, lore, preset, macros),
        closing_messages=_build_closing_messages(preset, macros),
    )


def _apply_prompt_order(
    draft: Draft,
    inputs: PromptInputs,
    macros: CardMacros,
    lore: LoreResult,
    speaker_descriptions: str,
) -> Draft:
    """Arrange the draft in the preset's prompt order; `{{user}}` stands for all speakers."""
    preset = inputs.preset
    summary = draft.summary.text if draft.summary and _has_macro(preset.prompts, "summary") else ""
    personas = [text for text in inputs.personas.values() if text]
    persona_text = sanitize_persona(personas[0]) if len(personas) == 1 else speaker_descriptions
    prompt_fields = {**macros.current.fields, "persona": persona_text, "summary": summary}
    prompt_macros = replace(macros.current, user=macros.stable.user, fields=prompt_fields)
    draft = replace(draft, summary=None if summary else draft.summary)
    return _insert_deep_lore(_arrange_prompts(draft, preset, prompt_macros, lore), lore)


def _expand_persona(draft: Draft, macros: Macros) -> Draft:
    """Expand the macros in the persona and stories, before other macros insert those texts."""

    def expand_parts(parts: Sequence[PromptPart], only_in: str) -> tuple[PromptPart, ...]:
        return tuple(
            replace(part, text=macros.expand(part.text)) if part.section == only_in else part
            for part in parts
        )

    system, context = expand_parts(draft.system, "persona"), expand_parts(draft.context, "stories")
    stories = [replace(story, text=macros.expand(story.text.strip())) for story in draft.stories]
    return replace(draft, system=system, context=context, stories=tuple(stories))


def _add_card_fields(macros: CardMacros, draft: Draft, inputs: PromptInputs) -> CardMacros:
    preset = inputs.preset
    persona_texts = [part.text for part in draft.system if part.section == "persona"]
    field_names = [name for name in PERSONA_FIELDS if getattr(preset, name)]
    texts_by_macro = {
        PERSONA_FIELDS[name]: text.removeprefix(find_persona_prefix(name, preset))
        for name, text in zip(field_names, persona_texts, strict=False)
    }
    role_names = {"user": macros.stable.user, "assistant": macros.stable.char}
    expand = macros.stable.expand
    messages = draft.pinned_messages
    examples = [f"{role_names.get(one.role, 'System')}: {expand(one.content)}" for one in messages]
    book = preset.parsed_lorebook
    notes = [one.content for one in book.entries if one.name == DEPTH_NOTE_ENTRY] if book else []
    return macros.with_values(
        {},
        **texts_by_macro,
        charprompt=get_custom_instructions(preset),
        mesexamples="\n".join(examples),
        chardepthprompt=notes[0] if notes else "",
    )


def _expand_macros(draft: Draft, macros: Macros) -> Draft:
    original_text = macros.expand(DEFAULT_INSTRUCTIONS)
    expand = replace(macros, fields={**macros.fields, "original": original_text}).expand
    system_parts = tuple(
        part if part.section == "persona" else replace(part, text=expand(part.text))
        for part in draft.system
    )
    pinned_messages = tuple(_expand_message(message, macros) for message in draft.pinned_messages)
    return replace(draft, system=system_parts, pinned_messages=pinned_messages)


def _expand_message(message: Message, macros: Macros) -> Message:
    parts = tuple(macros.expand(part) if isinstance(part, str) else part for part in message.parts)
    return replace(message, content=macros.expand(message.content), parts=parts)


def _insert_deep_lore(draft: Draft, lore: LoreResult) -> Draft:
    return replace(
        draft,
        history=insert_messages(build_deep_lore_messages(lore), draft.history),
        context=(
            *build_parts_without_history(lore, draft.history),
            *build_lore_parts_before_newest_message(lore),
            *draft.context,
        ),
        left_out_items=(*draft.left_out_items, *list_inactive_entries(lore)),
    )


def _arrange_system_parts(
    parts: Sequence[PromptPart], lore: LoreResult, preset: Preset, macros: CardMacros
) -> tuple[PromptPart, ...]:
    lore_before = build_lore_parts_at(lore, EntryPosition.BEFORE_CHAR)
    lore_after = build_lore_parts_at(lore, EntryPosition.AFTER_CHAR)
    system_parts = [part for part in parts if part.section == "system"]
    persona_parts = [part for part in parts if part.section == "persona"]
    other_parts = [part for part in parts if part not in system_parts and part not in persona_parts]
    examples = build_lore_parts_at(lore, EntryPosition.EXAMPLES_TOP)
    if not preset.story_string:
        return (*system_parts, *lore_before, *persona_parts, *lore_after, *examples, *other_parts)
    # The examples are separate messages.
    fields = {**macros.stable.fields, "systemprompt": _join_parts(system_parts), "mesexamples": ""}
    story_macros = replace(macros.stable, fields=fields, rng=macros.current.rng)
    text = story_macros.expand(convert_story_string(preset.story_string)).strip()
    rendered_parts = [PromptPart("system", text, is_required=True)] if text else []
    return (*rendered_parts, *examples, *other_parts)


def _join_parts(parts: Sequence[PromptPart]) -> str:
    return "\n".join(part.text for part in parts)


def _build_closing_messages(preset: Preset, macros: CardMacros) -> tuple[Message, ...]:
    source = preset.post_history_instructions or ""
    text = macros.current.expand(source) if preset.has_macros else source
    return (Message("system", text),) if text.strip() else ()


_ROLE_ORDER_AT_DEPTH = ("assistant", "user", "system")  # in this order; the last counts most
_PERSONA_MARKER_MACROS = {
    "charDescription": "description",
    "charPersonality": "personality",
    "scenario": "scenario",
    "personaDescription": "persona",
}


@value_class
class _FilledPrompt:
    """A prompt from the preset's prompt order; its lorebook entries can be dropped one by one."""

    definition: OrderedPrompt
    parts: Sequence[PromptPart]

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts)

    @property
    def message(self) -> Message:
        return Message(self.definition.role, self.text)


def _includes_persona(prompts: Iterable[OrderedPrompt]) -> bool:
    has_persona_marker = any(prompt.marker == "personaDescription" for prompt in prompts)
    return has_persona_marker or _has_macro(prompts, "persona")


def _has_macro(prompts: Iterable[OrderedPrompt], macro: str) -> bool:
    pattern = re.compile(rf"\{{\{{\s*{macro}\s*\}}\}}", re.IGNORECASE)
    return any(pattern.search(prompt.content) for prompt in prompts)


def _arrange_prompts(draft: Draft, preset: Preset, macros: Macros, lore: LoreResult) -> Draft:
    prompts = list(_fill_prompts(preset, macros, lore))
    markers = [prompt.definition.marker for prompt in prompts]
    history_index = markers.index("chatHistory") if "chatHistory" in markers else len(prompts)
    fixed_prompts = [
        (index, prompt) for index, prompt in enumerate(prompts) if prompt.definition.depth is None
    ]
    prompts_before_history = [prompt for index, prompt in fixed_prompts if index < history_index]
    prompts_after_history = [
        prompt for index, prompt in fixed_prompts if index > history_index and prompt.text.strip()
    ]
    system_prompts = list(takewhile(_is_system_prompt, prompts_before_history))
    deep_prompts = [
        prompt for prompt in prompts if prompt.definition.depth is not None and prompt.text.strip()
    ]
    joined_prompts = list(_join_deep_prompts(deep_prompts))
    newest_messages = [prompt.message for depth, prompt in joined_prompts if depth == 0]
    deep_messages = [
        (depth, prompt.message, prompt.definition.name or "prompt")
        for depth, prompt in joined_prompts
        if depth
    ]
    unplaced_messages = [] if draft.history else [message for _, message, _ in deep_messages]
    system_parts = [part for prompt in system_prompts for part in prompt.parts if part.text.strip()]
    pinned_prompts = prompts_before_history[len(system_prompts) :]
    pinned_messages = _build_messages_before_history(pinned_prompts, draft.pinned_messages, lore)
    return replace(
        draft,
        system=tuple(system_parts),
        pinned_messages=(*pinned_messages, *unplaced_messages),
        history=insert_messages(deep_messages, draft.history),
        closing_messages=(*newest_messages, *(prompt.message for prompt in prompts_after_history)),
    )


def _fill_prompts(preset: Preset, macros: Macros, lore: LoreResult) -> Iterator[_FilledPrompt]:
    for prompt in preset.prompts:
        match prompt.marker:
            case "worldInfoBefore" | "worldInfoAfter" as marker:
                is_before_char = marker == "worldInfoBefore"
                position = EntryPosition.BEFORE_CHAR if is_before_char else EntryPosition.AFTER_CHAR
                parts = _format_lore(prompt, build_lore_parts_at(lore, position))
                yield _FilledPrompt(prompt, parts)
            case "chatHistory" | "dialogueExamples":
                yield _FilledPrompt(prompt, ())
            case _:
                text = _fill_prompt(prompt, preset, macros)
                section = "persona" if prompt.marker in _PERSONA_MARKER_MACROS else "system"
                prompt_part = PromptPart(section, text, is_required=True)
                yield _FilledPrompt(prompt, [prompt_part] if text else [])


def _fill_prompt(prompt: OrderedPrompt, preset: Preset, macros: Macros) -> str:
    if prompt.marker in _PERSONA_MARKER_MACROS:
        value = macros.fields.get(_PERSONA_MARKER_MACROS[prompt.marker], "")
        return macros.expand(prompt.content).strip() if value and prompt.content else value
    texts_by_marker = {
        "main": macros.fields.get("charprompt"),
        "jailbreak": preset.post_history_instructions,
    }
    override_text = texts_by_marker.get(prompt.marker or "")
    if not override_text:
        return macros.expand(prompt.content).strip()
    original_text = macros.expand(prompt.content).strip() if "{{" in override_text else ""
    prompt_macros = replace(macros, fields={**macros.fields, "original": original_text})
    return prompt_macros.expand(override_text).strip()


def _format_lore(prompt: OrderedPrompt, parts: Sequence[PromptPart]) -> Sequence[PromptPart]:
    """Put lorebook entries into the format of their placeholder, such as `[Details: {0}]`."""
    prefix, _, suffix = prompt.content.partition("{0}")
    if not parts or "{0}" not in prompt.content:
        return parts
    first_part, *other_parts = parts
    *leading_parts, last_part = replace(first_part, text=prefix + first_part.text), *other_parts
    return [*leading_parts, replace(last_part, text=last_part.text + suffix)]


def _is_system_prompt(prompt: _FilledPrompt) -> bool:
    """Return whether a prompt can be part of the system message at the start."""
    holds_examples = prompt.definition.marker == "dialogueExamples"
    return not holds_examples and (prompt.definition.role == "system" or not prompt.text.strip())


def _build_messages_before_history(
    prompts: Sequence[_FilledPrompt], examples: Sequence[Message], lore: LoreResult
) -> list[Message]:
    """Return the messages between system message and history; join adjacent system messages."""
    joined_messages: list[Message] = []
    for prompt in prompts:
        messages = [prompt.message] if prompt.text.strip() else []
        if prompt.definition.marker == "dialogueExamples":
            lore_before = _join_to_message(build_lore_parts_at(lore, EntryPosition.EXAMPLES_TOP))
            lore_after = _join_to_message(build_lore_parts_at(lore, EntryPosition.EXAMPLES_BOTTOM))
            messages = [*lore_before, *examples, *lore_after]
        for message in messages:
            if joined_messages and joined_messages[-1].role == message.role == "system":
                content = f"{joined_messages[-1].content}\n\n{message.content}"
                joined_messages[-1] = replace(joined_messages[-1], content=content)
            else:
                joined_messages.append(message)
    return joined_messages


def _join_to_message(parts: Sequence[PromptPart]) -> list[Message]:
    text = _join_parts(parts)
    return [Message("system", text)] if text else []


def _join_deep_prompts(prompts: Sequence[_FilledPrompt]) -> Iterator[tuple[int, _FilledPrompt]]:
    """Yield (depth, prompt), deepest first; join prompts with equal depth, order, and role."""
    prompts_by_position: dict[tuple[int, int, int], list[_FilledPrompt]] = defaultdict(list)
    for prompt in prompts:
        definition = prompt.definition
        prompts_by_position[
            -(definition.depth or 0), definition.order, _ROLE_ORDER_AT_DEPTH.index(definition.role)
        ].append(prompt)
    for (depth, _, _), group in sorted(prompts_by_position.items(), key=lambda item: item[0]):
        parts = [part for prompt in group for part in prompt.parts]
        text = "\n".join(part.text for part in parts)
        yield -depth, replace(group[0], parts=[replace(parts[0], text=text)])
