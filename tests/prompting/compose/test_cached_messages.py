"""A prompt is the same whether its turns were in prompts before or not."""

from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from bot.chat.incoming import Person
from bot.chat.prompt import Message
from bot.chat.session import Session, Turn
from bot.prompting.compose.compose import compose
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters import strip_ask_command
from bot.prompting.speakers import (
    SpeakerLabels,
    add_speaker_tag,
    label_speakers,
)
from bot.prompting.text.confusables import strip_hidden_text
from tests.samples import ALICE, make_incoming

AT = datetime(2026, 11, 21, tzinfo=UTC)
CHARACTERS = {"nora": "nora", "sam": "Sam"}
PEOPLE = st.builds(
    Person,
    st.sampled_from(["telegram:1", "telegram:2", "telegram:3"]),
    st.sampled_from(["Alice", "Bob", "Bоb", "nora", "system", "小明", "A\nB:"]),
)
LINES = st.sampled_from(
    [
        "hi",
        "Bob: yes",
        "nora：no",
        "/ask why",
        "> x",
        "\U000e0041",
        "小明：好",
        "é\u200b\u200b\u200b\u200b",
    ]
)
TEXTS = st.lists(LINES, max_size=3).map("\n".join)
TURNS = st.lists(
    st.builds(lambda text, who: Turn("user", text, who, AT), TEXTS, PEOPLE)
    | st.builds(
        lambda text, preset: Turn("assistant", text, None, AT, preset),
        TEXTS,
        st.sampled_from([None, "nora", "sam"]),
    ),
    max_size=6,
)


def history_of(turns: Sequence[Turn], mode: str) -> list[Message]:
    """Return the history of a prompt of the preset nora."""
    preset = Preset.model_validate(
        {"name": "nora", "provider": "p", "model": "m", "user_name_in_message": mode}
    )
    draft = compose(preset, Session(1, tuple(turns)), make_incoming(), characters=CHARACTERS)
    return [message for unit in draft.history for message in unit.messages]


def expected_message(turn: Turn, labels: SpeakerLabels, *, tagged: bool) -> Message:
    """Make the message of a turn without the cache."""
    role = turn.role if turn.preset != "sam" else "user"
    text = strip_hidden_text(turn.text)
    if not tagged:
        return Message(role, strip_ask_command(text))
    label = labels.label_of(turn, "nora")
    return Message(role, add_speaker_tag(label, text, labels.reserved_skeletons), name=label)


@given(st.lists(TURNS, min_size=1, max_size=3), st.booleans())
def test_cached_messages_equal_computed_ones(chats: list[list[Turn]], tagged: bool) -> None:
    for turns in [*chats, *chats]:
        people = [*(turn.speaker for turn in turns if turn.speaker), ALICE]
        labels = label_speakers(people, CHARACTERS)
        expected = [expected_message(turn, labels, tagged=tagged) for turn in turns]
        assert history_of(turns, "add" if tagged else "not_add") == expected
