"""List the features of an imported preset that have no effect, for its import notes."""

from collections.abc import Iterator, Sequence

from bot.prompting.macros import unknown_macros
from bot.prompting.presets.preset import Preset
from bot.texts.text import Text, translatable

_MAX_NAMES = 40
_MAX_PROBLEMS = 20


def unsupported_features(preset: Preset) -> Sequence[Text]:
    """Return a note for each kind of unsupported feature in a preset."""
    notes: list[Text] = []
    if preset.has_macros and (unknown := unknown_macros(_texts(preset))):
        names = [f"{{{{{name}}}}}" for name in unknown[:_MAX_NAMES]]
        names += ["…"] * (len(unknown) > _MAX_NAMES)
        notes.append(
            translatable(
                "macros that have no value here stay as they are written: {names}",
                names=", ".join(names),
            )
        )
    book = preset.parsed_lorebook
    entries = book.entries if book else ()
    similar = [one for one in entries if one.vectorized and not (one.keys or one.constant)]
    if similar:
        notes.append(
            translatable(
                "{number} lorebook entries without keys are never used: only SillyTavern finds them"
                " by similarity (vectorized); give them keys",
                number=len(similar),
            )
        )
    return [*notes, *(book.problems[:_MAX_PROBLEMS] if book else ())]


def _texts(preset: Preset) -> Iterator[str]:
    own = (preset.system, preset.persona, preset.personality, preset.scenario, preset.story_string)
    others = (preset.post_history_instructions, *preset.greetings, *preset.group_greetings)
    yield from filter(None, (*own, *others))
    yield from (message.text for message in preset.messages)
    yield from (prompt.content for prompt in preset.prompts)
    book = preset.parsed_lorebook
    for entry in book.entries if book else ():
        yield from (entry.content, *entry.keys, *entry.secondary_keys)
