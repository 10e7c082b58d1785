"""Preset drafts, and the scenes from conversations to try them on."""

from collections.abc import Sequence

from bot.chat.incoming import IncomingMessage, WakeReason, parse_address
from bot.chat.session import Session, Turn
from bot.value_class import value_class


@value_class
class Scene:
    """A message, and the conversation before it."""

    before: Session
    message: IncomingMessage
    answers: tuple[Turn, ...] = ()
    answered_by: str = ""
    """The preset that answered; another one that is tried takes its place. Empty: not known."""


def recorded_scene(
    conversation: str,
    session: int,
    turns: Sequence[Turn],
    scopes: Sequence[str] = (),
    answered_by: str = "",
) -> Scene | None:
    """Return the newest addressed message of a history as a scene; None if there is none."""
    asked = [at for at, one in enumerate(turns) if one.speaker and not one.observed]
    if not asked:
        return None
    before, question, answers = turns[: asked[-1]], turns[asked[-1]], turns[asked[-1] + 1 :]
    address, author = parse_address(conversation), question.speaker
    assert author is not None  # noqa: S101 # it was chosen by its speaker
    people = {one.speaker.id for one in before if one.speaker} | {author.id}
    message = IncomingMessage(
        address=address,
        external_key="preview",
        message_id=question.message_id,
        author=author,
        text=question.text,
        at=question.at,
        wake=WakeReason.MENTION if len(people) > 1 else WakeReason.DM,
        scopes=tuple(scopes) or (address.lane,),
    )
    return Scene(Session(session, tuple(before)), message, tuple(answers), answered_by)


@value_class
class ImportedFile:
    """The file that a preset was imported from."""

    name: str
    content: bytes


@value_class
class PresetDraft:
    """A text that may be published as a preset's next version."""

    name: str
    base_version: int
    """The version that it is based on; 0: the preset is new."""
    revision: int
    """Counts what was saved; the first is 1."""
    content: str
    """As it was written, valid or not."""
    updated_at: float
    """In Unix seconds."""
    source: ImportedFile | None = None
