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
    DEPTH_NOTE_NAME,
    ORIGINAL_SYSTEM,
    CardMacros,
    build_card_macros,
    get_own_instructions,
)
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.compose.instructions import PERSONA_FIELDS, find_persona_prefix
from bot.prompting.compose.lore import (
    build_deep_lore_messages,
    build_lore_parts_at,
    build_newest_lore_parts,
    build_parts_without_history,
    find_lore,
    insert_messages,
    join_outlet_texts,
    report_inactive_entries,
)
from bot.prompting.draft import Draft, PromptPart
from bot.prompting.lorebook.entries import EntryPosition, LoreResult
from bot.prompting.macros import Macros, convert_story_string
from bot.prompting.presets.preset import OrderedPrompt, Preset
from bot.prompting.speakers import describe_speakers, sanitize_persona
from bot.value_class import value_class

_EMPTY_LORE = LoreResult((), (), {}, 0, {})


def apply_card(draft: Draft, inputs: PromptInputs) -> Draft:
    preset = inputs.preset
    speaker_ids = (turn.speaker.id for turn in reversed(inputs.turns) if turn.speaker)
    people = describe_speakers(speaker_ids, inputs.speakers.people, inputs.personas)
    instructions_or_story = preset.post_history_instructions or preset.story_string
    if preset.has_macros or preset.parsed_lorebook or instructions_or_story:
        draft = _apply_macros_and_lore(draft, inputs, people)
    if people and not (preset.has_prompt_order and _includes_persona(preset.prompts)):
        draft = replace(draft, context=(PromptPart("people", people, priority=1), *draft.context))
    return draft


def _apply_macros_and_lore(draft: Draft, inputs: PromptInputs, people: str) -> Draft:
    preset = inputs.preset
    macros = build_card_macros(inputs)
    if preset.has_macros:
        draft = _expand_persona(draft, macros.stable)
    macros = _with_card_fields(macros, draft, inputs)
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
        return _apply_prompt_order(draft, inputs, macros, lore, people)
    examples = _to_lore_messages(build_lore_parts_at(lore, EntryPosition.EXAMPLES_BOTTOM))
    draft = replace(draft, pinned_messages=(*draft.pinned_messages, *examples))
    return replace(
        _insert_deep_lore(draft, lore),
        system=_build_system_parts(draft.system, lore, preset, macros),
        closing_messages=_build_closing_messages(preset, macros),
    )


def _apply_prompt_order(
    draft: Draft, inputs: PromptInputs, macros: CardMacros, lore: LoreResult, people: str
) -> Draft:
    """Arrange the draft in the preset's prompt order; `{{user}}` stands for all speakers."""
    preset = inputs.preset
    summary = draft.summary.text if draft.summary and _has_macro(preset.prompts, "summary") else ""
    personas = [text for text in inputs.personas.values() if text]
    persona_text = sanitize_persona(personas[0]) if len(personas) == 1 else people
    prompt_fields = {**macros.current.fields, "persona": persona_text, "summary": summary}
    prompt_macros = replace(macros.current, user=macros.stable.user, fields=prompt_fields)
    draft = replace(draft, summary=None if summary else draft.summary)
    return _insert_deep_lore(_arrange_prompts(draft, preset, prompt_macros, lore), lore)


def _expand_persona(draft: Draft, macros: Macros) -> Draft:
    """Expand the macros in the persona and stories, before other macros insert those texts."""

    def expand_parts(parts: Sequence[PromptPart], section: str) -> tuple[PromptPart, ...]:
        return tuple(
            replace(part, text=macros.expand(part.text)) if part.section == section else part
            for part in parts
        )

    system, context = expand_parts(draft.system, "persona"), expand_parts(draft.context, "stories")
    stories = [replace(one, text=macros.expand(one.text.strip())) for one in draft.stories]
    return replace(draft, system=system, context=context, stories=tuple(stories))


def _with_card_fields(macros: CardMacros, draft: Draft, inputs: PromptInputs) -> CardMacros:
    preset = inputs.preset
    persona_texts = [part.text for part in draft.system if part.section == "persona"]
    field_names = [name for name in PERSONA_FIELDS if getattr(preset, name)]
    persona_values = {
        PERSONA_FIELDS[name]: text.removeprefix(find_persona_prefix(name, preset))
        for name, text in zip(field_names, persona_texts, strict=False)
    }
    role_names = {"user": macros.stable.user, "assistant": macros.stable.char}
    expand = macros.stable.expand
    messages = draft.pinned_messages
    examples = [f"{role_names.get(one.role, 'System')}: {expand(one.content)}" for one in messages]
    book = preset.parsed_lorebook
    notes = [one.content for one in book.entries if one.name == DEPTH_NOTE_NAME] if book else []
    return macros.with_values(
        {},
        **persona_values,
        charprompt=get_own_instructions(preset),
        mesexamples="\n".join(examples),
        chardepthprompt=notes[0] if notes else "",
    )


def _expand_macros(draft: Draft, macros: Macros) -> Draft:
    original_system = macros.expand(ORIGINAL_SYSTEM)
    expand = replace(macros, fields={**macros.fields, "original": original_system}).expand
    system = tuple(
        part if part.section == "persona" else replace(part, text=expand(part.text))
        for part in draft.system
    )
    pinned_messages = tuple(_expand_message(message, macros) for message in draft.pinned_messages)
    return replace(draft, system=system, pinned_messages=pinned_messages)


def _expand_message(message: Message, macros: Macros) -> Message:
    parts = tuple(macros.expand(part) if isinstance(part, str) else part for part in message.parts)
    return replace(message, content=macros.expand(message.content), parts=parts)


def _insert_deep_lore(draft: Draft, lore: LoreResult) -> Draft:
    return replace(
        draft,
        history=insert_messages(build_deep_lore_messages(lore), draft.history),
        context=(
            *build_parts_without_history(lore, draft.history),
            *build_newest_lore_parts(lore),
            *draft.context,
        ),
        left_out_items=(*draft.left_out_items, *report_inactive_entries(lore)),
    )


def _build_system_parts(
    parts: Sequence[PromptPart], lore: LoreResult, preset: Preset, macros: CardMacros
) -> tuple[PromptPart, ...]:
    lore_before = build_lore_parts_at(lore, EntryPosition.BEFORE_CHAR)
    lore_after = build_lore_parts_at(lore, EntryPosition.AFTER_CHAR)
    system = [part for part in parts if part.section == "system"]
    persona_parts = [part for part in parts if part.section == "persona"]
    other_parts = [part for part in parts if part not in system and part not in persona_parts]
    examples = build_lore_parts_at(lore, EntryPosition.EXAMPLES_TOP)
    if not preset.story_string:
        return (*system, *lore_before, *persona_parts, *lore_after, *examples, *other_parts)
    # The examples are separate messages.
    fields = {**macros.stable.fields, "systemprompt": _join_parts(system), "mesexamples": ""}
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


_ROLES_AT_SAME_DEPTH = ("assistant", "user", "system")  # in this order; the last counts most
_PERSONA_MARKER_MACROS = {
    "charDescription": "description",
    "charPersonality": "personality",
    "scenario": "scenario",
    "personaDescription": "persona",
}


@value_class
class _FilledPrompt:
    """A prompt of the preset's prompt order, whose lorebook entries can be dropped one by one."""

    prompt: OrderedPrompt
    parts: Sequence[PromptPart]

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts)

    @property
    def message(self) -> Message:
        return Message(self.prompt.role, self.text)


def _includes_persona(prompts: Iterable[OrderedPrompt]) -> bool:
    has_marker = any(one.marker == "personaDescription" for one in prompts)
    return has_marker or _has_macro(prompts, "persona")


def _has_macro(prompts: Iterable[OrderedPrompt], macro: str) -> bool:
    pattern = re.compile(rf"\{{\{{\s*{macro}\s*\}}\}}", re.IGNORECASE)
    return any(pattern.search(one.content) for one in prompts)


def _arrange_prompts(draft: Draft, preset: Preset, macros: Macros, lore: LoreResult) -> Draft:
    prompts = list(_fill_prompts(preset, macros, lore))
    markers = [one.prompt.marker for one in prompts]
    history_index = markers.index("chatHistory") if "chatHistory" in markers else len(prompts)
    fixed_prompts = [(at, one) for at, one in enumerate(prompts) if one.prompt.depth is None]
    prompts_before = [one for at, one in fixed_prompts if at < history_index]
    prompts_after = [one for at, one in fixed_prompts if at > history_index and one.text.strip()]
    system_prompts = list(takewhile(_is_system_prompt, prompts_before))
    deep_prompts = [one for one in prompts if one.prompt.depth is not None and one.text.strip()]
    pairs = list(_group_by_depth(deep_prompts))
    newest_messages = [one.message for depth, one in pairs if depth == 0]
    additions = [(depth, one.message, one.prompt.name or "prompt") for depth, one in pairs if depth]
    early_messages = [] if draft.history else [message for _, message, _ in additions]
    system_parts = [part for one in system_prompts for part in one.parts if part.text.strip()]
    later_prompts = prompts_before[len(system_prompts) :]
    pinned_messages = _build_messages_before_history(later_prompts, draft.pinned_messages, lore)
    return replace(
        draft,
        system=tuple(system_parts),
        pinned_messages=(*pinned_messages, *early_messages),
        history=insert_messages(additions, draft.history),
        closing_messages=(*newest_messages, *(one.message for one in prompts_after)),
    )


def _fill_prompts(preset: Preset, macros: Macros, lore: LoreResult) -> Iterator[_FilledPrompt]:
    for prompt in preset.prompts:
        match prompt.marker:
            case "worldInfoBefore" | "worldInfoAfter" as marker:
                is_before = marker == "worldInfoBefore"
                position = EntryPosition.BEFORE_CHAR if is_before else EntryPosition.AFTER_CHAR
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
    texts = {"main": macros.fields.get("charprompt"), "jailbreak": preset.post_history_instructions}
    override_text = texts.get(prompt.marker or "")
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
    first_part, *rest = parts
    *others, last = replace(first_part, text=prefix + first_part.text), *rest
    return [*others, replace(last, text=last.text + suffix)]


def _is_system_prompt(prompt: _FilledPrompt) -> bool:
    """Return whether a prompt can be part of the system message at the start."""
    has_examples = prompt.prompt.marker == "dialogueExamples"
    return not has_examples and (prompt.prompt.role == "system" or not prompt.text.strip())


def _build_messages_before_history(
    prompts: Sequence[_FilledPrompt], examples: Sequence[Message], lore: LoreResult
) -> list[Message]:
    """Return the messages between system message and history; join adjacent system messages."""
    joined_messages: list[Message] = []
    for one in prompts:
        messages = [one.message] if one.text.strip() else []
        if one.prompt.marker == "dialogueExamples":
            start_lore = _to_lore_messages(build_lore_parts_at(lore, EntryPosition.EXAMPLES_TOP))
            end_lore = _to_lore_messages(build_lore_parts_at(lore, EntryPosition.EXAMPLES_BOTTOM))
            messages = [*start_lore, *examples, *end_lore]
        for message in messages:
            if joined_messages and joined_messages[-1].role == message.role == "system":
                content = f"{joined_messages[-1].content}\n\n{message.content}"
                joined_messages[-1] = replace(joined_messages[-1], content=content)
            else:
                joined_messages.append(message)
    return joined_messages


def _to_lore_messages(parts: Sequence[PromptPart]) -> list[Message]:
    text = _join_parts(parts)
    return [Message("system", text)] if text else []


def _group_by_depth(prompts: Sequence[_FilledPrompt]) -> Iterator[tuple[int, _FilledPrompt]]:
    """Yield (depth, prompt), deepest first; join prompts with equal depth, order, and role."""
    groups: dict[tuple[int, int, int], list[_FilledPrompt]] = defaultdict(list)
    for one in prompts:
        prompt = one.prompt
        groups[-(prompt.depth or 0), prompt.order, _ROLES_AT_SAME_DEPTH.index(prompt.role)].append(
            one
        )
    for (depth, _, _), group in sorted(groups.items(), key=lambda item: item[0]):
        parts = [part for one in group for part in one.parts]
        text = "\n".join(part.text for part in parts)
        yield -depth, replace(group[0], parts=[replace(parts[0], text=text)])
