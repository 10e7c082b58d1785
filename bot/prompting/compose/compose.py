"""Compose a prompt as a draft, and fit the draft to the backend's limits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bot.chat.incoming import IncomingMessage
from bot.chat.memory import RankedMemories
from bot.chat.prompt import Image, Message, Prompt, Role, TemplateChoice, TemplateNames
from bot.chat.receipt import DroppedItem
from bot.chat.session import NO_FILES, AttachedFiles, Session, Turn
from bot.chat.story import Story
from bot.errors import UserError
from bot.ports import Backend
from bot.prompting.compose.background import build_background, split_observed_turns
from bot.prompting.compose.card import apply_card
from bot.prompting.compose.card_macros import DEFAULT_INSTRUCTIONS, get_custom_instructions
from bot.prompting.compose.inputs import PromptInputs, find_lowest_limit, gather_inputs
from bot.prompting.compose.instructions import (
    build_instructions,
    build_prompter,
    build_recent_story_parts,
    fill_persona,
    find_story_queries,
    list_personality_and_scenario,
)
from bot.prompting.compose.memories import build_memories
from bot.prompting.draft import Draft, HistoryUnit, PromptPart, group_history
from bot.prompting.fit import FittedPrompt, estimate_message_tokens, fit_draft
from bot.prompting.persona import FilledText
from bot.prompting.presets.fields import STRING_TEMPLATES, PresetMessage
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters import (
    AlpacaPrompter,
    ChatPrompter,
    format_ask_usage,
    parse_fields,
    strip_ask_command,
)
from bot.prompting.speakers import should_tag_turns
from bot.prompting.text.incremental_map import map_new_items
from bot.prompting.text.tokens import get_counter, get_counter_for_model
from bot.templates import names
from bot.texts.text import marked

Item = TypeVar("Item")

_SEARCH_FAILED_REASON = marked("the search failed or took too long")
_RETRY_TEMPERATURE = 0.5


def compose(
    preset: Preset,
    session: Session,
    incoming: IncomingMessage,
    *,
    characters: Mapping[str, str] | None = None,
    answers: Sequence[Turn] = (),
    summary: PromptPart | None = None,
    personas: Mapping[str, str] | None = None,
    stories: Mapping[str, Sequence[Story]] | None = None,
    max_prompt_tokens: int | None = None,
    is_retry: bool = False,
    files: AttachedFiles = NO_FILES,
    memories: RankedMemories | None = None,
) -> Draft:
    """Compose the draft of a prompt that answers `incoming`.

    `characters` maps the channel's presets to their characters' names. `answers` are their answers
    to the same message, which this character reads as user messages. `personas` maps person ids to
    people's descriptions of themselves. `stories` maps queries to stories, and is None if the
    preset has no stories. `is_retry` asks for another answer even at temperature 0. Raises
    `UserError` if a form field of the preset's prompter has no value.
    """
    answers = () if preset.prompter else answers  # one person fills in a form
    inputs = gather_inputs(
        preset, session, incoming, answers, characters, personas, max_prompt_tokens
    )
    tag_mode = preset.user_name_in_message
    uses_tags = not preset.prompter and should_tag_turns(tag_mode, inputs.turns, preset.name)
    turns, observed_turns = split_observed_turns(inputs.turns, 1 + len(answers))
    sent_turns = _select_last_turns(turns, preset.max_rounds, len(answers))
    history, newest_message = _build_history_and_newest(sent_turns, inputs, uses_tags=uses_tags)
    pinned_messages = [_to_pinned_message(message) for message in preset.messages]
    system_parts, filled_persona = _build_system_parts(inputs, stories)
    if prompter := build_prompter(preset, filled_persona.text):
        instruction, newest_message = _fill_form_fields(prompter, newest_message.content)
        system_parts = _to_required_parts("system", instruction)
        if not isinstance(prompter, ChatPrompter):  # its prompt contains no turns
            pinned_messages, history, observed_turns = [], (), []
    background, omitted_items = build_background(observed_turns, inputs, files, uses_tags=uses_tags)
    if memories is not None and not preset.prompter:
        memory_parts, omitted_memories = build_memories(inputs, memories)
        background = [*memory_parts, *background]
        omitted_items = [*omitted_memories, *omitted_items]
    unsent_turn_count = len(turns) - len(sent_turns)
    draft = Draft(
        empty_prompt=_build_empty_prompt(inputs, uses_tags=uses_tags, is_retry=is_retry),
        system=tuple(system_parts),
        pinned_messages=tuple(pinned_messages),
        summary=summary,
        history=history,
        context=(*build_recent_story_parts(inputs, stories), *background),
        newest_message=newest_message,
        images=files.images,
        stories=filled_persona.stories,
        left_out_items=(*omitted_items, *_list_left_out_items(inputs, unsent_turn_count, stories)),
        cache=inputs.session.cache,
    )
    return apply_card(draft, inputs)


def choose_template(preset: Preset) -> TemplateChoice:
    """Return the preset's chat template: its `template`, string templates, or the model's own."""
    trims_inputs = preset.trim_inputs
    match preset.template:
        case None:
            template_strings = {
                key: str(value)
                for key, value in preset.parameters.items()
                if key in STRING_TEMPLATES and value is not None
            }
            return TemplateChoice(strings=template_strings or None, trim_inputs=trims_inputs)
        case "model":
            return TemplateChoice(trim_inputs=trims_inputs)
        case dict() as texts:
            return TemplateChoice(role_texts=texts, trim_inputs=trims_inputs)
        case str() as name if name in names():
            return TemplateChoice(named=name, trim_inputs=trims_inputs)
        case source:
            return TemplateChoice(source=source, trim_inputs=trims_inputs)


def select_last_rounds(messages: Sequence[Item], max_rounds: int) -> Sequence[Item]:
    """Return the messages of the last rounds; a round is a question and its answer.

    The newest message is a question without an answer, so `n` rounds are `2 * n - 1` messages, of
    any roles. Zero and negative numbers keep all messages (docs/sources.md#rodel).
    """
    return messages[-(2 * max_rounds - 1) :] if max_rounds > 0 else messages


def _select_last_turns(turns: Sequence[Turn], max_rounds: int, peer_answers: int) -> Sequence[Turn]:
    """Return the last rounds' turns; observed lines and the newest answers do not count."""
    if max_rounds <= 0:
        return turns
    end = len(turns) - peer_answers
    unobserved_indexes = [index for index, turn in enumerate(turns[:end]) if not turn.is_observed]
    sent_indexes = select_last_rounds(unobserved_indexes, max_rounds)
    return turns[sent_indexes[0] :] if len(sent_indexes) < len(unobserved_indexes) else turns


def build_empty_prompt(preset: Preset) -> Prompt:
    """Return a prompt without messages, only with model, parameters, and output limit."""
    return Prompt(
        messages=(),
        model=preset.model,
        conversation="",
        parameters=_select_sampling_parameters(preset),
        max_output_tokens=preset.max_output_tokens,
    )


def _build_empty_prompt(inputs: PromptInputs, *, uses_tags: bool, is_retry: bool) -> Prompt:
    preset, labels = inputs.preset, inputs.speakers
    parameters = _select_sampling_parameters(preset)
    if is_retry and parameters.get("temperature") == 0:
        parameters["temperature"] = _RETRY_TEMPERATURE
    return Prompt(
        messages=(),
        model=preset.model,
        conversation=inputs.conversation,
        stop=_list_stop_strings(inputs) if uses_tags else preset.stop_sequences,
        parameters=parameters,
        max_output_tokens=preset.max_output_tokens,
        filtered=preset.filter_chars,
        answers_as=labels.characters[preset.name] if uses_tags else None,
        speakers=labels.other_labels(preset.name) if uses_tags else (),
        template=_choose_template_with_names(inputs) if uses_tags else choose_template(preset),
        character=preset.character_name,
        asked_by=inputs.incoming.author.id,
    )


def _choose_template_with_names(inputs: PromptInputs) -> TemplateChoice:
    preset, labels = inputs.preset, inputs.speakers
    template_choice = choose_template(preset)
    if not preset.names_in_template:
        return template_choice
    template_names = TemplateNames(
        char=labels.characters[preset.name],
        user=labels.people[inputs.incoming.author.id],
        is_group=should_tag_turns("default", inputs.turns, preset.name),
    )
    return replace(template_choice, names=template_names)


def _build_system_parts(
    inputs: PromptInputs, stories: Mapping[str, Sequence[Story]] | None
) -> tuple[list[PromptPart], FilledText]:
    preset, question = inputs.preset, inputs.incoming.text
    if preset.has_macros and not preset.prompter:
        # A card has its own roleplay instructions; its macros are expanded later (card.py).
        filled_text = fill_persona(preset, stories, message=question)
        instructions = get_custom_instructions(preset) or (preset.system and DEFAULT_INSTRUCTIONS)
        instruction_parts = _to_required_parts("system", instructions)
        persona_texts = [filled_text.text, *list_personality_and_scenario(preset)]
        persona = [part for text in persona_texts for part in _to_required_parts("persona", text)]
        return [*instruction_parts, *persona], filled_text
    filled_text = build_instructions(
        preset,
        stories,
        user_name=inputs.speakers.people[inputs.incoming.author.id],
        message=question,
        max_input_tokens=inputs.max_input_tokens,
    )
    text = "\n\n".join(filter(None, [filled_text.text, *list_personality_and_scenario(preset)]))
    return _to_required_parts("system", text), filled_text


def _to_pinned_message(message: PresetMessage) -> Message:
    parts: list[str | Image] = [
        part.text if part.type == "text" else Image(part.image_url, part.detail)
        for part in message.content
    ]
    has_images = any(isinstance(part, Image) for part in parts)
    return Message(message.role, message.text, tuple(parts) if has_images else ())


def _to_required_parts(section: str, text: str | None) -> list[PromptPart]:
    return [PromptPart(section, text, is_required=True)] if text else []


def _fill_form_fields(prompter: AlpacaPrompter | ChatPrompter, text: str) -> tuple[str, Message]:
    field_values = parse_fields(text, prompter.fields)
    try:
        messages = prompter.generate_prompt(field_values, return_dict=True)["messages"]
    except UserError as error:
        usage_text = format_ask_usage(prompter.fields)
        raise UserError.translatable(
            "{problem}. Write:\n{usage}", problem=error.text, usage=usage_text
        ) from None
    instruction, user_text = (str(message["content"]).strip("\n") for message in messages)
    # Models answer user messages, so an instruction that contains all values becomes the question.
    if not user_text:
        instruction, user_text = "", instruction
    return instruction, Message("user", user_text)


def _list_left_out_items(
    inputs: PromptInputs, dropped_turn_count: int, stories: Mapping[str, Sequence[Story]] | None
) -> tuple[DroppedItem, ...]:
    items = []
    if dropped_turn_count:
        reason = f"max_rounds is {inputs.preset.max_rounds}"
        items.append(DroppedItem("history", "", reason, dropped_turn_count))
    if stories is not None:
        story_queries = find_story_queries(inputs.preset, inputs.incoming.text).items()
        missing_count = sum(limit for query, limit in story_queries if query not in stories)
        if missing_count:
            items.append(DroppedItem("stories", "", _SEARCH_FAILED_REASON, missing_count))
    return tuple(items)


def _build_history_and_newest(
    turns: Sequence[Turn], inputs: PromptInputs, *, uses_tags: bool
) -> tuple[tuple[HistoryUnit, ...], Message]:
    messages = _to_messages(turns, inputs, uses_tags=uses_tags)
    are_questions = [turn.speaker is not None for turn in turns[:-1]]
    cache, key = inputs.session.cache, inputs.preset.name
    history = group_history(messages[:-1], are_questions=are_questions, cache=cache, key=key)
    return history, messages[-1]


def _to_messages(
    turns: Sequence[Turn], inputs: PromptInputs, *, uses_tags: bool
) -> tuple[Message, ...]:
    preset_name, labels = inputs.preset.name, inputs.speakers

    def to_plain_message(turn: Turn) -> Message:
        return Message(_to_role(turn, preset_name), strip_ask_command(turn.text))

    def to_tagged_message(turn: Turn) -> Message:
        if turn.role == "system":  # no speaker, as in narration
            return to_plain_message(turn)
        label = labels.find_label(turn, preset_name)
        return Message(_to_role(turn, preset_name), labels.tag_text(label, turn.text), name=label)

    # Earlier turns become the same messages in every prompt of a conversation, so they are reused.
    cache, cache_key = inputs.session.cache, ("messages", preset_name)
    if not uses_tags:
        return map_new_items(cache, cache_key, None, turns, to_plain_message)
    return map_new_items(cache, cache_key, labels.tagging_context, turns, to_tagged_message)


def _to_role(turn: Turn, preset_name: str) -> Role:
    """Return a turn's role in the prompts of `preset_name`, in which other characters are users."""
    return turn.role if turn.preset is None or turn.preset == preset_name else "user"


def _list_stop_strings(inputs: PromptInputs) -> tuple[str, ...]:
    """Return the preset's stop strings, and the tags of the other speakers, latest first."""
    preset_name = inputs.preset.name
    other_labels = inputs.speakers.other_labels(preset_name)
    turn_labels = [inputs.speakers.find_label(turn, preset_name) for turn in reversed(inputs.turns)]
    labels = dict.fromkeys([*turn_labels, *other_labels])
    tags = [f"\n{label}:" for label in labels if label in other_labels]
    return (*inputs.preset.stop_sequences, *tags)


def _select_sampling_parameters(preset: Preset) -> dict[str, object]:
    return {
        key: value
        for key, value in preset.parameters.items()
        if key not in STRING_TEMPLATES and value is not None
    }


async def fit_for_backend(preset: Preset, draft: Draft, backend: Backend) -> FittedPrompt:
    """Fit a draft to the limits of preset and backend; raise `UserError` or `BackendError`."""
    preset_limit, encoding = preset.max_input_tokens, preset.token_counter
    max_prompt_tokens = await backend.max_prompt_tokens(draft.empty_prompt)
    if encoding is None:
        estimate = await backend.text_counter(draft.empty_prompt)
        max_tokens = find_lowest_limit(preset_limit, max_prompt_tokens)
        return await fit_draft(draft, max_tokens, backend.count_tokens, estimate)
    fitted_prompt, count_tokens = await fit_for_preset(preset, draft), backend.count_tokens
    if max_prompt_tokens is None or await count_tokens(fitted_prompt.prompt) <= max_prompt_tokens:
        return fitted_prompt
    estimate = get_counter(encoding)
    smaller_prompt = await fit_draft(fitted_prompt.draft, max_prompt_tokens, count_tokens, estimate)
    dropped_items = (*fitted_prompt.dropped_items, *smaller_prompt.dropped_items)
    return replace(smaller_prompt, dropped_items=dropped_items)


async def fit_for_preset(preset: Preset, draft: Draft) -> FittedPrompt:
    """Fit a draft to the preset's limit of (estimated) tokens; raise `UserError` if too long."""
    limit = preset.max_input_tokens
    if preset.token_counter:
        token_counter = get_counter(preset.token_counter)
        return await fit_draft(draft, limit, token_counter.count_prompt, token_counter)
    token_counter = get_counter_for_model(preset.model)
    await token_counter.load()

    async def estimate_prompt(prompt: Prompt) -> int:
        return sum(estimate_message_tokens(prompt.messages, token_counter))

    return await fit_draft(draft, limit, estimate_prompt, token_counter)


async def find_limit_for_lore_and_memory(preset: Preset, backend: Backend) -> int | None:
    """Return the model's context size, or None if the preset has no lore, persona, or memory.

    Raises `BackendError`.
    """
    if preset.lorebook is None and preset.persona is None and not preset.memory:
        return None
    return await backend.max_prompt_tokens(build_empty_prompt(preset))
