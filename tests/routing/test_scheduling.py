"""Who speaks next where several characters are, and why."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.chat.incoming import Person, WakeReason
from bot.chat.session import Turn
from bot.prompting.presets.preset import Preset
from bot.routing.scheduling import LONGEST_CHAIN, SpeakerCandidate, react, schedule
from tests.samples import incoming

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def preset(name: str, **given: object) -> Preset:
    return Preset.model_validate({"name": name, "provider": "p", "model": "m", **given})


NORA = preset("nora", role_name="Nora")
MARLOWE = preset("marlowe", role_name="Philip Marlowe", aliases=["Phil"])
LAN = preset("兰亭", talkativeness=0)
ROOM = (NORA, MARLOWE, LAN)


def said(who: str, text: str = "Hm.", seconds_ago: float = 60) -> Turn:
    return Turn("assistant", text, None, NOW - timedelta(seconds=seconds_ago), who)


def asked(
    text: str,
    *,
    wake: WakeReason | None = WakeReason.MENTION,
    quote: str | None = None,
    recent: Sequence[Turn] = (),
    room: Sequence[Preset] = ROOM,
    dice: float = 0.99,
) -> tuple[SpeakerCandidate, ...]:
    message = incoming(text, wake=wake, quote=quote)
    return schedule(room, message, recent, dice=lambda: dice, now=NOW)


def chosen(candidates: Sequence[SpeakerCandidate]) -> list[str]:
    return [one.preset for one in candidates if one.chosen]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Phil, what do you say?", ["marlowe"]),
        ("NORA!", ["nora"]),
        ("philip marlowe and nora, come in", ["marlowe", "nora"]),
        ("兰亭你好", ["兰亭"]),
        ("你好兰亭，nora在吗", ["兰亭", "nora"]),
    ],
)
def test_who_is_called_answers_in_the_order_of_the_calls(text: str, names: list[str]) -> None:
    assert chosen(asked(text, dice=0.0)) == names


def test_a_name_within_a_word_calls_nobody() -> None:
    assert chosen(asked("the noradrenaline of philately", wake=None)) == []


def test_a_name_calls_even_where_the_bot_was_not_mentioned() -> None:
    assert chosen(asked("so nora said", wake=None)) == ["nora"]


@pytest.mark.parametrize("quote", ["**Philip Marlowe**\nRain again.", "Rain again, of course."])
def test_who_is_replied_to_answers(quote: str) -> None:
    recent = [said("marlowe", "Rain again, of course."), said("nora")]
    assert chosen(asked("why?", wake=WakeReason.REPLY, quote=quote, recent=recent)) == ["marlowe"]


def test_others_answer_as_they_feel_like_it() -> None:
    assert chosen(asked("hello all", dice=0.4)) == ["nora", "marlowe"]


def test_somebody_always_answers_and_rather_who_spoke_last() -> None:
    assert chosen(asked("go on", recent=[said("nora"), said("marlowe")])) == ["marlowe"]
    assert len(chosen(asked("hello"))) == 1


def test_what_is_said_to_others_moves_only_those_with_rules_for_it() -> None:
    assert chosen(asked("nice weather", wake=None, dice=0.0)) == []
    talker = preset("talker", wake={"words": ["weather"]})
    assert chosen(asked("nice weather", wake=None, room=(NORA, talker))) == ["talker"]


def test_who_rests_is_left_alone_unless_called() -> None:
    tired = preset("tired", cooldown_seconds=90, talkativeness=1)
    recent = [said("tired", seconds_ago=60), said("nora", seconds_ago=30)]
    assert chosen(asked("hello", room=(NORA, tired), recent=recent, dice=0.1)) == ["nora"]
    assert chosen(asked("tired?", room=(NORA, tired), recent=recent)) == ["tired"]


def test_the_reasons_tell_everything() -> None:
    found = asked("hello", recent=[said("nora")], dice=0.7)
    assert [(one.preset, one.score, one.reasons) for one in found] == snapshot(
        [
            (
                "nora",
                10.5,
                (
                    "spoke last",
                    "did not feel like it: drew 0.70, speaks below 0.50",
                    "somebody has to answer",
                ),
            ),
            ("marlowe", 0.5, ("did not feel like it: drew 0.70, speaks below 0.50",)),
            ("兰亭", 0.0, ("was not spoken to",)),
        ]
    )


# --- reactions -----------------------------------------------------------------------------------


def reacting(*answers: Turn, dice: float = 0.99, room: Sequence[Preset] = ROOM) -> list[str]:
    return chosen(react(room, answers, answers, dice=lambda: dice, now=NOW))


def test_who_is_called_by_another_character_reacts() -> None:
    assert reacting(said("nora", "Ask Phil.")) == ["marlowe"]
    assert reacting(said("nora", "I, Nora, know.")) == []


def test_a_reaction_takes_twice_the_mood() -> None:
    assert reacting(said("nora"), dice=0.2) == ["marlowe"]
    assert reacting(said("nora"), dice=0.3) == []


def test_who_has_spoken_speaks_again_only_when_called() -> None:
    assert reacting(said("nora"), said("marlowe"), dice=0.0) == []
    assert reacting(said("nora"), said("marlowe", "Right, Nora?"), dice=0.0) == ["nora"]


@given(
    st.lists(st.sampled_from(["nora", "marlowe", "兰亭"]), max_size=6),
    st.text(alphabet="nora, philmarowe兰亭?", max_size=30),
    st.sampled_from([None, WakeReason.DM, WakeReason.MENTION, WakeReason.REPLY]),
    st.floats(0, 0.999),
)
def test_a_chain_ends_and_everybody_is_explained(
    before: list[str], text: str, wake: WakeReason | None, dice: float
) -> None:
    recent = [said(name) for name in before]
    found = asked(text or "x", wake=wake, recent=recent, dice=dice)

    answers = [said(name, text) for name in chosen(found)]
    while names := reacting(*answers, dice=dice):
        answers.append(said(names[0], text))

    assert {one.preset for one in found} == {one.name for one in ROOM}
    assert all(one.reasons for one in found)
    assert len(answers) <= LONGEST_CHAIN
    assert answers or wake is None


def test_a_person_s_name_never_matters() -> None:
    message = incoming("hello", wake=None, author=Person("a:1", "Nora"))
    assert chosen(schedule(ROOM, message, [], dice=lambda: 0.99, now=NOW)) == []
