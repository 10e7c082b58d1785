"""The turns of a history as rows, and back."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bot.chat.incoming import Person
from bot.chat.session import Turn
from bot.chat.storable import make_storable
from bot.storage.sql.tables import turn

COLUMNS = (
    *(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at),
    *(turn.c.preset, turn.c.preset_version),
)


def to_row(conversation: str, session: int, said: Turn) -> dict[str, object]:
    """What is inserted into the table."""
    return {
        "conversation": conversation,
        "session": session,
        "role": said.role,
        "speaker_id": said.speaker.id if said.speaker else None,
        "speaker_name": said.speaker.name if said.speaker else None,
        "text": make_storable(said.text),
        "at": said.at.timestamp(),
        "preset": said.preset,
        "preset_version": said.preset_version,
    }


def to_turn(row: Sequence[Any]) -> Turn:
    """Read a row that begins with `COLUMNS`; what comes behind them is the caller's."""
    role, speaker_id, speaker_name, text, at, preset, version, *_ = row
    speaker = Person(speaker_id, speaker_name) if speaker_id else None
    return Turn(role, text, speaker, datetime.fromtimestamp(at, UTC), preset, version)
