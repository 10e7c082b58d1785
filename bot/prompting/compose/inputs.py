"""Gather a prompt's inputs: the preset, the turns, and their speakers' labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bot.chat.incoming import IncomingMessage
from bot.chat.session import Session, Turn, text_with_attachments
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import SpeakerLabels, label_speakers
from bot.prompting.text.confusables import strip_hidden_text
from bot.prompting.text.incremental_map import map_new_items
from bot.value_class import value_class


@value_class
class PromptInputs:
    """Everything that a prompt is composed from, except stories."""

    preset: Preset
    session: Session
    incoming: IncomingMessage
    turns: Sequence[Turn]
    """The turns including the newest message, oldest first, without hidden text."""
    speakers: SpeakerLabels
    personas: Mapping[str, str]
    """People's descriptions of themselves (`/me`), by person id."""
    max_input_tokens: int | None
    """The prompt's token budget: the lower of the preset's and the model's limit."""
    conversation: str

    @property
    def seed(self) -> str:
        """The seed for random choices that must stay the same for the whole session."""
        return f"{self.conversation} {self.session.number}"

    def is_own_turn(self, turn: Turn) -> bool:
        return turn.speaker is None and turn.preset in {None, self.preset.name}

    def find_speaker_label(self, turn: Turn) -> str:
        """Return the name of a turn's speaker, even where turns have no speaker tags."""
        if self.is_own_turn(turn):
            return self.preset.character_name
        return self.speakers.find_label(turn, self.preset.name)


def gather_inputs(
    preset: Preset,
    session: Session,
    incoming: IncomingMessage,
    answers: Sequence[Turn],
    characters: Mapping[str, str] | None,
    personas: Mapping[str, str] | None,
    max_prompt_tokens: int | None,
) -> PromptInputs:
    """Gather a prompt's inputs: the turns with the new message and answers, and speaker labels."""
    newest_turn = Turn("user", text_with_attachments(incoming), incoming.author, incoming.at)
    all_turns = (*session.turns, newest_turn, *answers)
    conversation = incoming.address.conversation
    turns = map_new_items(session.cache, "visible", None, all_turns, _strip_hidden_text)
    fallback_names = {turn.preset: turn.preset for turn in turns if turn.preset}
    names = {**fallback_names, **(characters or {}), preset.name: preset.character_name}
    quote = incoming.quote
    quoted_authors = [quote.author] if quote and quote.author and not quote.is_ours else []
    speakers = [turn.speaker for turn in turns if turn.speaker]
    labels = label_speakers([*quoted_authors, *speakers], names)  # each person's latest name counts
    max_tokens = find_lowest_limit(preset.max_input_tokens, max_prompt_tokens)
    return PromptInputs(
        preset, session, incoming, turns, labels, personas or {}, max_tokens, conversation
    )


def find_lowest_limit(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _strip_hidden_text(turn: Turn) -> Turn:
    if turn.text.isascii():
        return turn
    visible_text = strip_hidden_text(turn.text)
    return turn if visible_text == turn.text else replace(turn, text=visible_text)
