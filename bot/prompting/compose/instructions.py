"""Build a preset's system text from its instructions, persona, stories, and prompter."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bot.chat.story import Story
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.draft import PromptPart, get_story_title
from bot.prompting.haruhi import strip_dialogue_brackets
from bot.prompting.persona import (
    DEFAULT_PLACEHOLDER,
    FilledText,
    Persona,
    build_roleplay_prompt,
    fill_names,
    fill_placeholders,
    parse_persona,
)
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters import AlpacaPrompter, ChatPrompter, Instruction
from bot.prompting.text.tokens import get_counter_for_model

_PROMPT_TO_STORIES_RATIO = 4  # stories may use a quarter of the prompt
PERSONA_FIELDS = {"persona": "description", "personality": "personality", "scenario": "scenario"}
"""Maps the preset keys that describe a character to the macros that insert their texts."""


def find_persona_prefix(persona_field: str, preset: Preset) -> str:
    """Return the text before a preset's personality or scenario, or "" for other keys."""
    prefixes = {"personality": f"{preset.character_name}'s personality: ", "scenario": "Scenario: "}
    return prefixes.get(persona_field, "")


def list_personality_and_scenario(preset: Preset) -> Sequence[str]:
    return [
        find_persona_prefix(key, preset) + text
        for key, text in (("personality", preset.personality), ("scenario", preset.scenario))
        if text
    ]


def find_story_queries(preset: Preset, message: str) -> Mapping[str, int]:
    """Return the persona's story queries, each with its number of stories."""
    return _parse_persona_or_default(preset).list_story_queries(message)


def build_recent_story_parts(
    inputs: PromptInputs, stories: Mapping[str, Sequence[Story]] | None
) -> Sequence[PromptPart]:
    """Return the stories to place before the newest message, best first."""
    preset, max_tokens = inputs.preset, inputs.max_input_tokens
    if preset.stories != "recent" or stories is None:
        return ()
    user_name = inputs.speakers.people[inputs.incoming.author.id]
    filled_text = fill_placeholders(
        _parse_persona_or_default(preset),
        _strip_story_brackets(stories),
        message=inputs.incoming.text,
        tokens=max_tokens and max_tokens // _PROMPT_TO_STORIES_RATIO,
        counter=get_counter_for_model(preset.model),
    )
    parts = []
    for story in filled_text.stories:
        text = fill_names(story.text.strip(), preset.character_name, user_name)
        title = get_story_title(replace(story, text=text))
        parts.append(PromptPart("stories", f"###\n{text}", title, story.score))
    return parts


def build_instructions(
    preset: Preset,
    stories: Mapping[str, Sequence[Story]] | None,
    *,
    user_name: str,
    message: str,
    max_input_tokens: int | None,
) -> FilledText:
    """Return the system text and its stories; `stories` maps queries to search results.

    With `role_name` and `persona`, the text is exactly that of a `Character`. Without `role_name`,
    the persona is used verbatim, and `{{role}}` is the preset's name. If `stories` is None, the
    placeholders are removed. The returned stories have the same wording as in the text.
    """
    if preset.persona is None:
        return FilledText(preset.system or "", ())
    if preset.role_name:
        filled_text = build_roleplay_prompt(
            parse_persona(preset.persona),
            _stories_unless_recent(preset, stories),
            role_name=preset.role_name,
            user_name=user_name,
            message=message,
            max_input_tokens=max_input_tokens,
            counter=get_counter_for_model(preset.model),
        )
    else:
        filled_text = fill_persona(preset, stories, message=message)
        text = fill_names(filled_text.text, preset.character_name, user_name)
        filled_text = replace(filled_text, text=text)
    shown_stories = [
        replace(story, text=fill_names(story.text.strip(), preset.character_name, user_name))
        for story in filled_text.stories
    ]
    text = "\n\n".join(part for part in (preset.system, filled_text.text) if part)
    return FilledText(text, tuple(shown_stories))


def fill_persona(
    preset: Preset, stories: Mapping[str, Sequence[Story]] | None, *, message: str
) -> FilledText:
    """Return the persona with its stories; placeholders and macros for names are kept."""
    persona = parse_persona(preset.persona or "")
    persona_stories = _stories_unless_recent(preset, stories)
    counter = get_counter_for_model(preset.model)
    return fill_placeholders(
        persona, persona_stories, message=message, tokens=None, counter=counter
    )


def _stories_unless_recent(
    preset: Preset, stories: Mapping[str, Sequence[Story]] | None
) -> dict[str, list[Story]] | None:
    return None if preset.stories == "recent" else _strip_story_brackets(stories)


def build_prompter(preset: Preset, system: str = "") -> AlpacaPrompter | ChatPrompter | None:
    """Build the preset's prompter, if any, which puts the `system` text first."""
    choice = preset.prompter
    if choice is None:
        return None
    prompt_parts: Instruction = choice.instruction
    if choice.user is not None:
        prompt_parts = {"system": choice.instruction, "user": choice.user}
    prompter_class = AlpacaPrompter if choice.kind == "alpaca" else ChatPrompter
    prompter = prompter_class(prompt_parts, choice.extra_keys)
    prompter.set_model_configs(system=system)
    return prompter


def _parse_persona_or_default(preset: Preset) -> Persona:
    """Parse the persona; if it has no placeholder, "recent" stories use the default one."""
    persona = parse_persona(preset.persona or "")
    if preset.stories == "recent" and not persona.placeholders:
        return parse_persona(DEFAULT_PLACEHOLDER)
    return persona


def _strip_story_brackets(
    stories: Mapping[str, Sequence[Story]] | None,
) -> dict[str, list[Story]] | None:
    if stories is None:
        return None
    return {
        query: [replace(story, text=strip_dialogue_brackets(story.text)) for story in results]
        for query, results in stories.items()
    }
