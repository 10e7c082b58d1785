"""Preset drafts, and scenes: excerpts of conversations for testing a preset."""

from collections.abc import Sequence

from bot.chat.incoming import IncomingMessage, WakeReason, parse_address
from bot.chat.session import Session, Turn
from bot.value_class import value_class


@value_class
class Scene:
    """A message to answer and the conversation before it, for testing a preset."""

    session_before_message: Session
    message: IncomingMessage
    answers: tuple[Turn, ...] = ()
    answering_preset: str = ""
    """The preset that really answered; the tested preset replaces it. Empty: unknown."""


def find_newest_scene(
    conversation: str,
    session_number: int,
    turns: Sequence[Turn],
    scopes: Sequence[str] = (),
    answering_preset: str = "",
) -> Scene | None:
    """Return the newest message addressed to the bot, if any, with the turns around it."""
    question_indexes = [
        index for index, one in enumerate(turns) if one.speaker and not one.is_observed
    ]
    if not question_indexes:
        return None
    index = question_indexes[-1]
    earlier_turns, question, answers = turns[:index], turns[index], turns[index + 1 :]
    address, author = parse_address(conversation), question.speaker
    assert author is not None  # noqa: S101 # it was chosen by its speaker
    person_ids = {one.speaker.id for one in earlier_turns if one.speaker} | {author.id}
    message = IncomingMessage(
        address=address,
        external_key="preview",
        message_id=question.message_id,
        author=author,
        text=question.text,
        at=question.at,
        wake=WakeReason.MENTION if len(person_ids) > 1 else WakeReason.DM,
        scopes=tuple(scopes) or (address.lane,),
    )
    session = Session(session_number, tuple(earlier_turns))
    return Scene(session, message, tuple(answers), answering_preset)


@value_class
class ImportedFile:
    """The file that a preset was imported from."""

    name: str
    content: bytes


@value_class
class PresetDraft:
    """An unpublished text for a preset's next version."""

    name: str
    base_version: int
    """The version that was edited; 0: the preset is new."""
    revision: int
    """The number of times it was saved, from 1."""
    content: str
    """The text as entered; it may be invalid."""
    updated_at: float
    """In Unix seconds."""
    source: ImportedFile | None = None
