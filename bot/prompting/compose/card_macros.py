"""Build a card's macros for one conversation: names, time, and seeded random choices.

Random numbers depend only on the conversation and message, so a retry or replay composes the same
prompt.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from bot.chat.incoming import ChatJoin, IncomingMessage
from bot.chat.session import Turn
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.macros import Macros
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import clean_name, sanitize_persona
from bot.value_class import value_class

DEFAULT_INSTRUCTIONS = (
    "Write {{char}}'s next reply in a conversation between {{char}} and {{notChar}}."
    " Stay in character, and never speak or act for anybody else."
)
"""A card's default instructions, which are also the value of `{{original}}`."""

DEPTH_NOTE_ENTRY = "note at depth"
"""The name of the lorebook entry that stores the depth prompt of an imported card."""

_MAX_NAMES = 5
_MAX_GREETING_CHARS = 20_000  # ten messages on Discord; a greeting cannot be stopped


@value_class
class CardMacros:
    """The macros for the stable start of a prompt, and for the part that each message changes."""

    stable: Macros
    """In these, `{{user}}` means all people, so that the text is the same for all authors."""
    current: Macros

    def with_values(self, outlets: Mapping[str, str], **fields: str) -> "CardMacros":
        """Return a copy with more field values, and with the lore texts by outlet name."""
        stable_macros, current_macros = (
            replace(macros, fields={**macros.fields, **fields}, outlets=outlets)
            for macros in (self.stable, self.current)
        )
        return CardMacros(stable_macros, current_macros)


def build_card_macros(inputs: PromptInputs) -> CardMacros:
    speaker_ids = [turn.speaker.id for turn in inputs.turns if turn.speaker]
    people_labels = [inputs.speakers.people[person_id] for person_id in dict.fromkeys(speaker_ids)]
    preset, max_tokens = inputs.preset, inputs.max_input_tokens
    author_id = inputs.incoming.author.id
    character_labels = inputs.speakers.characters.items()
    other_labels = [label for name, label in character_labels if name != preset.name]
    user_texts = [turn.text for turn in reversed(inputs.turns) if turn.role == "user"]
    answer_texts = [turn.text for turn in reversed(inputs.turns) if turn.role == "assistant"]
    question_times = [turn.at for turn in inputs.turns[:-1] if turn.role == "user"]
    stable_macros = Macros(
        char=preset.character_name,
        user=_join_names(people_labels),
        now=inputs.incoming.at,
        rng=make_random_generator(inputs.seed),
        make_pick_generator=partial(make_random_generator, inputs.seed),
        fields={
            "group": ", ".join([preset.character_name, *other_labels]),
            "notchar": _join_names([*other_labels, *people_labels]),
            "version": str(preset.version),
            "model": preset.model,
            "creatornotes": preset.description,
            "charinstruction": preset.post_history_instructions or "",
            "maxprompt": str(max_tokens or ""),
            "maxcontext": str(max_tokens + (preset.max_output_tokens or 0) if max_tokens else ""),
            "maxresponse": str(preset.max_output_tokens or ""),
        },
        greetings=preset.greetings,
        idle_time=inputs.incoming.at - question_times[-1] if question_times else None,
    )
    current_macros = replace(
        stable_macros,
        user=inputs.speakers.people[author_id],
        rng=make_random_generator(inputs.seed, build_turn_seed(inputs.turns[-1])),
        fields={
            **stable_macros.fields,
            "persona": sanitize_persona(inputs.personas.get(author_id, "")),
            "input": user_texts[0],
            "lastusermessage": user_texts[0],
            "lastmessage": inputs.turns[-1].text,
            "lastcharmessage": answer_texts[0] if answer_texts else "",
            "lastmessageid": str(len(inputs.turns) - 1),
        },
    )
    return CardMacros(stable_macros, current_macros)


def get_custom_instructions(preset: Preset) -> str:
    """Return a card's own instructions, or "" if it uses the default instructions."""
    return "" if preset.system == DEFAULT_INSTRUCTIONS else preset.system or ""


def choose_greeting(
    preset: Preset,
    incoming: IncomingMessage | ChatJoin,
    *,
    rng: random.Random,
    number: int | None = None,
    character_count: int = 1,
) -> str | None:
    """Return greeting `number` (from 1, by default 1), or None if the preset has no greetings.

    Long greetings are cut to the length of ten messages.
    """
    greetings = preset.select_greetings(character_count)
    if not greetings:
        return None
    text = greetings[max(1, min(number or 1, len(greetings))) - 1]
    if preset.has_macros:
        text = build_reply_macros(preset, incoming, rng).expand(text)
    return text if len(text) <= _MAX_GREETING_CHARS else f"{text[: _MAX_GREETING_CHARS - 1]}…"


def build_reply_macros(
    preset: Preset, incoming: IncomingMessage | ChatJoin, rng: random.Random
) -> Macros:
    name = clean_name(incoming.author.name) if incoming.author else ""
    return Macros(
        char=preset.character_name,
        user=name or "user",
        now=incoming.at,
        rng=rng,
        fields={"group": preset.character_name, "notchar": name, "model": preset.model},
        greetings=preset.greetings,
    )


def make_random_generator(*seeds: str) -> random.Random:
    """Return a random number generator that depends only on the seeds."""
    digest = hashlib.sha256("\x00".join(seeds).encode(errors="replace")).digest()
    return random.Random(digest)  # noqa: S311 # not for security


def build_turn_seed(turn: Turn) -> str:
    """Return a text that identifies a turn even after its session is reloaded."""
    return f"{int(turn.at.timestamp())} {turn.text}"


def _join_names(names: Sequence[str]) -> str:
    """Join names, as in `Alice, Bob and Carol`. Names over the limit become `others`."""
    listed_names = [*names[:_MAX_NAMES], *(["others"] if len(names) > _MAX_NAMES else [])]
    *other_names, final_name = listed_names or ["user"]
    return f"{', '.join(other_names)} and {final_name}" if other_names else final_name
