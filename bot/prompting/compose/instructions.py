"""What a conversation with a preset begins with: its instructions, and the role that it plays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bot.chat.story import Story
from bot.prompting.personas.haruhi_text import strip_dialogue_brackets
from bot.prompting.personas.persona import (
    FilledText,
    fill,
    parse_persona,
    roleplay_system,
    with_names,
)
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters.alpaca import AlpacaPrompter
from bot.prompting.prompters.chat import ChatPrompter
from bot.prompting.prompters.prompter import Instruction
from bot.prompting.text.token_counter import count_tokens


def story_queries_for(preset: Preset, newest: str) -> Mapping[str, int]:
    """Which stories the persona asks for: each query, with how many it takes, best first."""
    return parse_persona(preset.persona or "").story_queries(newest)


def instructions(
    preset: Preset,
    stories: Mapping[str, Sequence[Story]] | None,
    *,
    user_name: str,
    newest: str,
) -> FilledText:
    """The system text with its stories; `stories` are by query of `story_queries_for`.

    A preset with `role_name` and `persona` says, word for word, what a `Character` of them says.
    Without a `role_name` the persona stands as it is written, and `{{role}}` is the preset's name.
    `stories` None: there is no library. The stories given back read as they do in the text.
    """
    if preset.persona is None:
        return FilledText(preset.system or "", ())
    persona, shown = parse_persona(preset.persona), _plain(stories)
    if preset.role_name:
        played = roleplay_system(
            persona,
            shown,
            role_name=preset.role_name,
            user_name=user_name,
            newest=newest,
            max_input_tokens=preset.max_input_tokens,
            count=count_tokens,
        )
    else:
        filled = fill(persona, shown, newest=newest, tokens=None, count=count_tokens)
        played = replace(filled, text=with_names(filled.text, preset.character_name, user_name))
    told = [
        replace(story, text=with_names(story.text.strip(), preset.character_name, user_name))
        for story in played.stories
    ]
    text = "\n\n".join(part for part in (preset.system, played.text) if part)
    return FilledText(text, tuple(told))


def persona_of_card(
    preset: Preset, stories: Mapping[str, Sequence[Story]] | None, *, newest: str
) -> FilledText:
    """The persona with its stories in place; its names are macros, which are filled later."""
    persona = parse_persona(preset.persona or "")
    return fill(persona, _plain(stories), newest=newest, tokens=None, count=count_tokens)


def _plain(stories: Mapping[str, Sequence[Story]] | None) -> dict[str, list[Story]] | None:
    """The same stories as ChatHaruhi 3 writes dialogues."""
    if stories is None:
        return None
    return {
        query: [replace(story, text=strip_dialogue_brackets(story.text)) for story in found]
        for query, found in stories.items()
    }


def build_prompter(preset: Preset, system: str = "") -> AlpacaPrompter | ChatPrompter | None:
    """Build what the preset's `prompter` asks for; the `system` text stands first."""
    choice = preset.prompter
    if choice is None:
        return None
    parts: Instruction = choice.instruction
    if choice.user is not None:
        parts = {"system": choice.instruction, "user": choice.user}
    kind = AlpacaPrompter if choice.kind == "alpaca" else ChatPrompter
    prompter = kind(parts, choice.extra_keys)
    prompter.set_model_configs(system=system)
    return prompter
