"""Test decide_on_message(): whether a message is answered, observed, or ignored."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pydantic import ValidationError

from bot.chat.command import Command, parse_command
from bot.chat.incoming import IncomingMessage, Person, Quote, WakeReason
from bot.chat.session import Turn
from bot.commands.handlers import COMMANDS
from bot.prompting.presets.preset import Preset
from bot.routing.decide import (
    Answer,
    Decision,
    Ignore,
    Observe,
    decide_on_message,
    describe_silence,
)
from bot.routing.presets import ActiveCharacters, ActivePreset
from tests.samples import make_incoming


def preset(**given: object) -> Preset:
    """Return a preset that does not observe other messages."""
    fixed = {"name": "nora", "provider": "p", "model": "m", "context": "addressed"}
    return Preset.model_validate({**fixed, **given})


def decide_text(
    text: str, wake: WakeReason | None, *presets: Preset, dice: float = 0.5
) -> Decision:
    active = ActiveCharacters(tuple(ActivePreset(one, None, None) for one in presets))
    message = make_incoming(text, wake=wake)
    return decide_on_message(message, active, (), dice=lambda: dice, now=message.at)


def decide_message(
    message: IncomingMessage, *presets: Preset, recent: Sequence[Turn] = ()
) -> Decision:
    active = ActiveCharacters(tuple(ActivePreset(one, None, None) for one in presets))
    return decide_on_message(message, active, recent, dice=lambda: 0.5, now=message.at)


def outcome(
    text: str, wake: WakeReason | None, *presets: Preset, dice: float = 0.5
) -> type[Decision]:
    return type(decide_text(text, wake, *presets, dice=dice))


@pytest.mark.parametrize(
    ("text", "wake", "given", "expected"),
    [
        ("hello", WakeReason.DM, {}, Answer),
        ("hello", WakeReason.MENTION, {}, Answer),
        ("hello", WakeReason.REPLY, {}, Answer),
        ("hello", WakeReason.REPLY, {"wake": {"reply": False}}, Ignore),
        ("  ", WakeReason.DM, {}, Ignore),
        ("hello", None, {}, Ignore),
        ("hello", None, {"context": "all"}, Observe),
        ("Hey NORA!", None, {"wake": {"words": ["nora"]}}, Answer),
        ("hello", None, {"wake": {"always": True}}, Answer),
        ("hello", None, {"wake": {"chance": 0.6}}, Answer),
        ("hello", None, {"wake": {"chance": 0.4}}, Ignore),
    ],
)
def test_message_is_answered_if_it_addresses_the_bot_or_matches_a_wake_rule(
    text: str, wake: WakeReason | None, given: dict[str, object], expected: type[Decision]
) -> None:
    assert outcome(text, wake, preset(**given), dice=0.5) is expected


@pytest.mark.parametrize(
    ("word", "text", "wakes"),
    [
        ("lamp", "Where is the LAMP?", True),
        ("lamp", "a lamppost", False),
        ("lamp", "clamp it", False),
        ("good night", "So, good  night", False),
        ("good night", "So, good night!", True),
        ("ランプ", "このランプは", True),
        ("/lamps?$/i", "two LAMPS", True),
        ("/lamps?$/i", "lamps here", False),
        ("/^\\d+ d6/", "3 d6", True),
    ],
)
def test_wake_words_match_whole_words_or_patterns(word: str, text: str, wakes: bool) -> None:
    expected = Answer if wakes else Ignore
    assert outcome(text, None, preset(wake={"words": [word]})) is expected


def test_wake_word_in_a_forwarded_message_is_ignored() -> None:
    said = make_incoming("[forwarded message]\n> nora, a lamp", wake=None)
    for is_forward, expected in ((False, Answer), (True, Ignore)):
        for names in (preset(wake={"names": False, "words": ["lamp"]}), preset()):
            decision = decide_message(replace(said, is_forward=is_forward), names)
            assert type(decision) is expected


def test_slow_wake_pattern_does_not_match() -> None:
    slow = preset(wake={"words": ["/(a|aa)+$/"]})
    assert outcome("a" * 5000 + "b", None, slow) is Ignore


def test_invalid_wake_pattern_is_rejected() -> None:
    with pytest.raises(ValidationError, match="cannot be used"):
        preset(wake={"words": ["/(/"]})


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("so what does Nora say?", {}, Answer),
        ("I like Nora's norabilia", {}, Answer),
        ("norabilia", {}, Ignore),
        ("Nono, is it you?", {"aliases": ["Nono"]}, Answer),
        ("Nora?", {"wake": {"names": False}}, Ignore),
        ("see https://example.org/nora/1", {}, Ignore),
        ("nora, see https://example.org", {}, Answer),
        ("看https://example.org，nora你好", {}, Answer),
    ],
)
def test_character_can_be_called_by_its_names(
    text: str, given: dict[str, object], expected: type[Decision]
) -> None:
    assert outcome(text, None, preset(role_name="Nora", **given)) is expected


ALWAYS: dict[str, object] = {"wake": {"always": True, "chance": 1.0, "words": ["tea"]}}
BOBS_MESSAGE = Quote(Person("discord:9", "Bob"), "7", "Tea, anyone?")


@pytest.mark.parametrize(
    ("mentions", "quote"),
    [(("discord:9",), None), ((), BOBS_MESSAGE)],
    ids=["mentions somebody", "replies to somebody"],
)
def test_message_to_other_people_is_not_answered(
    mentions: tuple[str, ...], quote: Quote | None
) -> None:
    waking = preset(role_name="Nora", **ALWAYS)
    for text in ("tea?", "is nora there?"):
        message = replace(make_incoming(text, wake=None), mentions=mentions, quote=quote)
        assert type(decide_message(message, waking)) is Ignore
        assert type(decide_message(message, waking, preset(name="luna", **ALWAYS))) is Ignore
        decision = decide_message(message, waking)
        assert isinstance(decision, Ignore)
        [why] = describe_silence(decision).splitlines()
        assert why == "nora was not addressed: the message is for somebody else"
    to_nora = replace(
        make_incoming("Nora, what does he mean?", wake=None), mentions=mentions, quote=quote
    )
    assert type(decide_message(to_nora, waking)) is Answer
    mentioned = replace(
        make_incoming("tea?", wake=WakeReason.MENTION), mentions=mentions, quote=quote
    )
    assert type(decide_message(mentioned, waking)) is Answer


@pytest.mark.parametrize(
    ("in_thread", "spoke", "sticky", "expected"),
    [
        (True, True, True, Answer),
        (True, False, True, Ignore),
        (False, True, True, Ignore),
        (True, True, False, Ignore),
    ],
)
def test_message_in_a_thread_with_an_answer_needs_no_mention(
    in_thread: bool, spoke: bool, sticky: bool, expected: type[Decision]
) -> None:
    message = replace(make_incoming("and then?", wake=None), in_thread=in_thread)
    answer = Turn("assistant", "Once.", None, message.at, "nora")
    recent = [answer] if spoke else []
    one = preset(wake={"sticky": sticky})
    assert type(decide_message(message, one, recent=recent)) is expected


def test_command_that_is_not_addressed_to_the_bot_is_ignored() -> None:
    assert outcome("/new", None, preset()) is Ignore
    assert decide_text("/new", WakeReason.COMMAND, preset()) == Command("new")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/preset use Nova Prime ", Command("preset", "use Nova Prime")),
        ("/preset", Command("preset")),
        ("/NEW", Command("new")),
        ("/unknown thing", Command("unknown", "thing")),
        ("/ new", None),
        ("/", None),
        ("// comment", None),
        ("hello /new", None),
    ],
)
def test_parse_reads_name_action_and_argument(text: str, command: Command | None) -> None:
    assert parse_command(text) == command


def test_every_command_spec_is_parsed_under_its_name() -> None:
    assert [command.name for spec in COMMANDS if (command := parse_command(f"/{spec.name}"))] == [
        spec.name for spec in COMMANDS
    ]


def test_ask_is_a_command_unless_a_preset_has_a_form() -> None:
    filled = preset(prompter={"kind": "chat", "instruction": "In {language}."})
    for line in ("/ask hi", "/ASK\nlanguage: Latin", "/ask@nora_bot language: Latin"):
        assert outcome(line, WakeReason.DM, filled) is Answer
    assert decide_text("/ask hi", WakeReason.DM, preset()) == Command("ask", "hi")
    assert decide_text("/asking", WakeReason.DM, filled) == Command("asking")
    assert decide_text("/help", WakeReason.DM, filled) == Command("help")
    assert "ask" not in [spec.name for spec in COMMANDS]


def test_answer_decision_has_speakers_in_order_and_reasons_for_all() -> None:
    nora, marlowe, lan = preset(), preset(name="marlowe"), preset(name="lan")
    decision = decide_text("lan? nora?", WakeReason.DM, nora, marlowe, lan)
    assert isinstance(decision, Answer)
    assert [one.preset.name for one in decision.speakers] == ["lan", "nora"]
    assert [(one.preset, one.chosen) for one in decision.candidates] == [
        ("lan", True),
        ("nora", True),
        ("marlowe", False),
    ]


def test_observe_decision_has_the_reasons_of_all_characters() -> None:
    decision = decide_text("hello", None, preset(context="all"), preset(name="marlowe"))
    assert isinstance(decision, Observe)
    assert {one.reasons for one in decision.candidates} == {("was not addressed",)}
