"""Test which of several characters answer, in which order, and why."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.chat.incoming import Person, WakeReason
from bot.chat.session import Turn
from bot.prompting.presets.preset import Preset
from bot.routing.speakers import (
    MAX_ANSWERS_IN_A_ROW,
    SpeakerCandidate,
    select_next_speaker,
    select_speakers,
)
from bot.texts.text import to_translatable, translate
from tests.samples import make_incoming

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def preset(name: str, **given: object) -> Preset:
    return Preset.model_validate({"name": name, "provider": "p", "model": "m", **given})


NORA = preset("nora", role_name="Nora")
MARLOWE = preset("marlowe", role_name="Philip Marlowe", aliases=["Phil"])
LAN = preset("兰亭", talkativeness=0)
GROUP = (NORA, MARLOWE, LAN)


def spoken_turn(who: str, text: str = "Hm.", seconds_ago: float = 60) -> Turn:
    return Turn("assistant", text, None, NOW - timedelta(seconds=seconds_ago), who)


def select_for_question(
    text: str,
    *,
    wake: WakeReason | None = WakeReason.MENTION,
    quote: str | None = None,
    recent: Sequence[Turn] = (),
    presets: Sequence[Preset] = GROUP,
    dice: float = 0.99,
) -> tuple[SpeakerCandidate, ...]:
    message = make_incoming(text, wake=wake, quote=quote)
    return select_speakers(presets, message, recent, dice=lambda: dice, now=NOW)


def chosen_names(candidates: Sequence[SpeakerCandidate]) -> list[str]:
    return [one.preset for one in candidates if one.chosen]


@pytest.mark.parametrize(
    ("text", "given", "names"),
    [
        ("Phil, what do you say?", {"dice": 0.0}, ["marlowe"]),
        ("NORA!", {"dice": 0.0}, ["nora"]),
        ("philip marlowe and nora, come in", {"dice": 0.0}, ["marlowe", "nora"]),
        ("兰亭你好", {"dice": 0.0}, ["兰亭"]),
        ("你好兰亭，nora在吗", {"dice": 0.0}, ["兰亭", "nora"]),
        ("so nora said", {"wake": None}, ["nora"]),
        ("the noradrenaline of philately", {"wake": None}, []),
        ("hello all", {"dice": 0.4}, ["nora", "marlowe"]),
    ],
)
def test_characters_called_by_name_answer_in_order(
    text: str, given: dict[str, Any], names: list[str]
) -> None:
    assert chosen_names(select_for_question(text, **given)) == names


@pytest.mark.parametrize("quote", ["**Philip Marlowe**\nRain again.", "Rain again, of course."])
def test_character_that_is_replied_to_answers(quote: str) -> None:
    recent = [spoken_turn("marlowe", "Rain again, of course."), spoken_turn("nora")]
    assert chosen_names(
        select_for_question("why?", wake=WakeReason.REPLY, quote=quote, recent=recent)
    ) == ["marlowe"]


def test_addressed_message_is_always_answered_preferably_by_the_last_speaker() -> None:
    assert chosen_names(
        select_for_question("go on", recent=[spoken_turn("nora"), spoken_turn("marlowe")])
    ) == ["marlowe"]
    assert len(chosen_names(select_for_question("hello"))) == 1


def test_message_that_addresses_no_character_is_answered_only_by_a_wake_rule() -> None:
    assert chosen_names(select_for_question("nice weather", wake=None, dice=0.0)) == []
    talker = preset("talker", wake={"words": ["weather"]})
    assert chosen_names(select_for_question("nice weather", wake=None, presets=(NORA, talker))) == [
        "talker"
    ]


def test_cooldown_silences_a_character_unless_it_is_called() -> None:
    tired = preset("tired", cooldown_seconds=90, talkativeness=1)
    recent = [spoken_turn("tired", seconds_ago=60), spoken_turn("nora", seconds_ago=30)]
    assert chosen_names(
        select_for_question("hello", presets=(NORA, tired), recent=recent, dice=0.1)
    ) == ["nora"]
    assert chosen_names(select_for_question("tired?", presets=(NORA, tired), recent=recent)) == [
        "tired"
    ]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("why?", {"quote": "**Nora**\nHm."}),
        ("nora?", {}),
        ("hello", {}),
        ("hello", {"dice": 0.0}),
        ("hello", {"wake": None}),
        ("hello", {"wake": None, "presets": [NORA]}),
    ],
)
def test_reasons_are_translated(text: str, given: dict[str, Any]) -> None:
    for candidate in select_for_question(text, recent=[spoken_turn("marlowe")], **given):
        for reason in candidate.reasons:
            chinese = translate(to_translatable(reason), "zh")
            assert not re.search("[a-z]", chinese), reason


def test_candidates_have_scores_and_reasons() -> None:
    found = select_for_question("hello", recent=[spoken_turn("nora")], dice=0.7)
    assert [(one.preset, one.score, one.reasons) for one in found] == snapshot(
        [
            (
                "nora",
                10.5,
                (
                    "spoke last",
                    "chance: rolled 0.70, needed less than 0.50",
                    "had the highest score, and one character must answer",
                ),
            ),
            ("marlowe", 0.5, ("chance: rolled 0.70, needed less than 0.50",)),
            ("兰亭", 0.0, ("was not addressed",)),
        ]
    )


# --- reactions -----------------------------------------------------------------------------------


def select_reacting(
    *answers: Turn, dice: float = 0.99, presets: Sequence[Preset] = GROUP
) -> list[str]:
    return chosen_names(select_next_speaker(presets, answers, answers, dice=lambda: dice, now=NOW))


def test_character_called_by_another_character_reacts() -> None:
    assert select_reacting(spoken_turn("nora", "Ask Phil.")) == ["marlowe"]
    assert select_reacting(spoken_turn("nora", "I, Nora, know.")) == []


def test_reaction_has_half_the_chance_of_an_answer() -> None:
    assert select_reacting(spoken_turn("nora"), dice=0.2) == ["marlowe"]
    assert select_reacting(spoken_turn("nora"), dice=0.3) == []


def test_character_that_has_answered_reacts_only_when_called() -> None:
    assert select_reacting(spoken_turn("nora"), spoken_turn("marlowe"), dice=0.0) == []
    assert select_reacting(
        spoken_turn("nora"), spoken_turn("marlowe", "Right, Nora?"), dice=0.0
    ) == ["nora"]


@given(
    st.lists(st.sampled_from(["nora", "marlowe", "兰亭"]), max_size=6),
    st.text(alphabet="nora, philmarowe兰亭?", max_size=30),
    st.sampled_from([None, WakeReason.DM, WakeReason.MENTION, WakeReason.REPLY]),
    st.floats(0, 0.999),
)
def test_reactions_in_a_row_are_limited_and_candidates_have_reasons(
    before: list[str], text: str, wake: WakeReason | None, dice: float
) -> None:
    recent = [spoken_turn(name) for name in before]
    found = select_for_question(text or "x", wake=wake, recent=recent, dice=dice)

    answers = [spoken_turn(name, text) for name in chosen_names(found)]
    while names := select_reacting(*answers, dice=dice):
        answers.append(spoken_turn(names[0], text))

    assert {one.preset for one in found} == {one.name for one in GROUP}
    assert all(one.reasons for one in found)
    assert len(answers) <= MAX_ANSWERS_IN_A_ROW
    assert answers or wake is None


def test_authors_name_does_not_call_a_character() -> None:
    message = make_incoming("hello", wake=None, author=Person("a:1", "Nora"))
    assert chosen_names(select_speakers(GROUP, message, [], dice=lambda: 0.99, now=NOW)) == []
