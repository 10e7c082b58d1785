"""Test several characters in one channel: which of them answer, in which order and format."""

from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from bot.chat.command import ButtonAction
from bot.chat.incoming import WakeReason
from bot.errors import BackendUnavailable, UserError
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeBackend, ScriptStep
from tests.samples import BOB, make_incoming
from tests.turn.setup import Setup, failure, on, pressed

NILS: dict[str, object] = {"name": "nils", "role_name": "Nils Holm", "greeting": "Evening."}
QUIET: dict[str, object] = {"name": "quiet", "talkativeness": 0}


async def group_of_two(
    database: Database, *scripts: list[ScriptStep], nils: dict[str, object] = NILS, **given: object
) -> Setup:
    """Return a channel where nora and nils answer."""
    backend = FakeBackend(*scripts)
    setup = Setup(database, backend=backend, others=[nils, QUIET], **given)  # type: ignore[arg-type]
    await setup.say("/preset add nils")
    setup.surface.messages.clear()
    return setup


def last_prompt(setup: Setup) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in setup.backend.prompts[-1].messages]


async def test_characters_read_earlier_answers_to_the_same_message(database: Database) -> None:
    setup = await group_of_two(database, ["I am Nora."], ["Nils Holm: And I am Nils."])

    await setup.say("nora and nils, who are you?")

    assert setup.texts == ["**nora**\nI am Nora.", "**Nils Holm**\nAnd I am Nils."]
    assert last_prompt(setup) == snapshot(
        [
            ("assistant", "Nils Holm:Evening."),
            ("user", "Alice:nora and nils, who are you?"),
            ("user", "nora:I am Nora."),
        ]
    )
    assert setup.backend.prompts[-1].stop == ("\nnora:", "\nAlice:")
    assert await setup.history() == [
        ("assistant", "Evening."),
        ("user", "nora and nils, who are you?"),
        ("assistant", "I am Nora."),
        ("assistant", "And I am Nils."),
    ]


async def test_delete_button_removes_only_the_answer_above_it(database: Database) -> None:
    setup = await group_of_two(database, ["I am Nora."], ["And I am Nils."])
    await setup.say("nora and nils, who are you?")
    turn = "telegram:5:2"
    await setup.say(pressed(ButtonAction.DELETE, f"{turn}/1"))
    assert setup.texts == ["**nora**\nI am Nora."]
    assert [text for _, text in await setup.history()][-1] == "I am Nora."
    await setup.say(pressed(ButtonAction.DELETE, f"{turn}/0", key="2"))
    assert setup.texts == []


async def test_characters_answer_each_other_a_limited_number_of_times(database: Database) -> None:
    setup = await group_of_two(database, ["Ask Nils."], ["No, ask Nora."], ["Ask Nils!"], ["never"])
    await setup.say("nora, what time is it?")
    assert setup.texts == [
        "**nora**\nAsk Nils.",
        "**Nils Holm**\nNo, ask Nora.",
        "**nora**\nAsk Nils!",
    ]


async def test_answer_ends_before_a_line_of_another_character(
    database: Database,
) -> None:
    setup = await group_of_two(database, ["Fine.\n", "**Nils Holm:** Me ", "too."])
    await setup.say("nora, how are you?")
    assert setup.texts[0] == "**nora**\nFine."
    assert setup.backend.closed_early == 1


async def test_failing_speaker_is_skipped(database: Database) -> None:
    away = BackendUnavailable("away")
    setup = await group_of_two(database, ["one"], [away], [away], ["Nils is here."])
    await setup.say("nora! nils!", "nora! nils!")
    assert setup.texts == ["**nora**\none", "**Nils Holm**\nNils is here."]


async def test_first_error_is_reported_when_all_speakers_fail(database: Database) -> None:
    away = BackendUnavailable("away", notice="The model is away.")
    setup = await group_of_two(database, [away])
    await setup.say("nora! nils!")
    assert setup.texts == [failure("The model is away.", "5:2")]


async def test_message_to_other_people_is_observed_if_a_preset_asks_for_it(
    database: Database,
) -> None:
    setup = await group_of_two(database, ["Yes?"], preset={"context": "all"})
    await setup.say(make_incoming("nice weather", wake=None, key="5:7"))
    assert setup.texts == []
    await setup.say(make_incoming("is it not, nils?", wake=None, key="5:8", author=BOB))
    assert setup.texts == ["**Nils Holm**\nYes?"]
    role, newest = last_prompt(setup)[-1]
    assert (role, newest.splitlines()[1:]) == (
        "user",
        ["> Alice:nice weather", "", "Bob:is it not, nils?"],
    )


async def test_reply_is_answered_by_the_character_that_wrote_the_quote(database: Database) -> None:
    setup = await group_of_two(database, ["Once there was a clock."], ["It broke."])
    await setup.say("nils, a story")
    quote = "**Nils Holm**\nOnce there was a clock."
    await setup.say(make_incoming("and then?", wake=WakeReason.REPLY, quote=quote, key="5:9"))
    assert setup.texts[-1] == "**Nils Holm**\nIt broke."


async def test_removed_character_keeps_its_name_in_the_history(database: Database) -> None:
    setup = await group_of_two(database, ["Bye."], ["Hm."])
    await setup.say("nils?", "/preset remove nils")
    await setup.say("who was that?")
    assert setup.texts[-1] == "Hm."
    assert ("user", "Nils Holm:Bye.") in last_prompt(setup)


async def test_preset_who_command_explains_who_would_answer(database: Database) -> None:
    setup = await group_of_two(database)
    await setup.say("/preset who nils, are you there?")
    assert setup.texts == snapshot(
        [
            """\
→ nils answers (score 100.0): was called by name
· nora does not answer (score 0.0): another character was called\
"""
        ]
    )
    assert setup.backend.prompts == []


async def test_speaker_line_is_shown_during_live_updates(database: Database) -> None:
    setup = await group_of_two(database, ["x" * 40, "y"])
    await setup.say("nora?")
    assert [text for call, text in setup.surface.calls if call == "send"][-1].startswith(
        "**nora**\n"
    )


async def test_speaker_with_too_small_a_budget_is_skipped(database: Database) -> None:
    small = {**NILS, "max_input_tokens": 60}
    setup = await group_of_two(database, ["I am Nora. " * 30], nils=small)
    await setup.say("nora and nils, who are you?")
    assert setup.texts == ["**nora**\n" + ("I am Nora. " * 30).strip()]
    assert len(setup.backend.prompts) == 1


async def test_form_prompt_omits_answers_of_other_characters(database: Database) -> None:
    form = {**NILS, "prompter": {"kind": "alpaca", "instruction": "Translate {text}."}}
    setup = await group_of_two(database, ["Gladly."], ["Guten Tag."], nils=form)
    await setup.say("/ask nora! nils! text: good day")
    assert setup.texts[-1] == "**Nils Holm**\nGuten Tag."
    assert "good day" in last_prompt(setup)[-1][1]
    assert "Gladly" not in str(last_prompt(setup))


async def test_context_shows_the_receipts_of_all_speakers(database: Database) -> None:
    setup = await group_of_two(database, ["I am Nora."], ["And I am Nils."])
    await setup.say("nora and nils, who are you?", "/context")
    told = "".join(setup.texts[2:])
    assert "nora (version 3) on p/m, receipt 1: " in told
    assert "nils on p/m, receipt 2: " in told

    await setup.say("/context prompt")
    [file] = setup.surface.files.values()
    assert file.name == "prompt-1-2.txt"
    assert [part.split(":")[0].strip() for part in file.text.split("=" * 80)] == [
        "1 nora",
        "2 nils",
    ]


async def test_lorebook_and_macros_include_the_other_characters(database: Database) -> None:
    seen = {"keys": ["Nils Holm:"], "content": "Nils has a boat.", "enabled": True}
    card: dict[str, object] = {
        "macros": True,
        "role_name": "Nora",
        "system": "{{char}} of {{group}} talks to {{notChar}}; {{user}} asks.",
        "lorebook": {"entries": [{**seen, "insertion_order": 1}]},
    }
    setup = await group_of_two(database, ["Aye."], preset=card)
    await setup.say("/new", "nora?")
    system = "Nora of Nora, Nils Holm talks to Nils Holm and Alice; Alice asks."
    assert last_prompt(setup)[0] == ("system", system)
    await setup.say("nils?", "nora?")
    assert "\n\nNils has a boat." in last_prompt(setup)[0][1]


async def test_retry_of_an_older_answer_removes_later_turns(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"], ["again"])
    await setup.say("a", "b")
    await setup.say(on("1", "/retry", key="5:3"))  # the first answer is message 1
    assert setup.texts == ["one", "two", "again"]
    assert await setup.history() == [("user", "a"), ("assistant", "again")]
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a"]


async def test_retried_answer_replaces_the_failure_notice(database: Database) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    setup = Setup(database, [away], ["again"])
    await setup.say(make_incoming("a", key="5:70"), on("1", "/retry", key="5:71"))
    assert setup.texts == ["again"]
    assert await setup.history() == [("user", "a"), ("assistant", "again")]


async def test_menu_can_be_neither_retried_nor_edited(database: Database) -> None:
    setup = Setup(database, limits=replace(LIMITS, has_buttons=True))
    await setup.say(make_incoming("/preset menu", key="5:70"), on("1", "/retry", key="5:71"))
    await setup.say(on("1", "/edit x", key="5:72"))
    assert setup.texts[1:] == ["⚠ I don't remember that message."] * 2
    assert setup.backend.prompts == []


async def test_retry_by_a_native_command_is_answered_for_everybody(database: Database) -> None:
    setup = Setup(database, ["one"], ["again"])
    await setup.say("a")
    native = replace(make_incoming("/retry", key="5:2"), message_id=None, interaction="1:token")
    await setup.say(native)
    assert setup.texts == ["one", "again", "I've answered the question again below."]


async def test_edited_answer_becomes_a_version_in_the_same_message(database: Database) -> None:
    setup = Setup(database, ["one"], ["next"], limits=replace(LIMITS, has_buttons=True))
    await setup.say(make_incoming("a", key="5:70"))
    await setup.say(on("1", "/edit It was quiet.", key="5:2"))
    assert setup.texts == ["It was quiet."]
    labels = [one.label for one in setup.surface.contents[-1].buttons]
    assert labels[-2:] == ["‹", "2/2"]
    await setup.say(make_incoming("b", key="5:3"))
    assert [one.content for one in setup.backend.prompts[-1].messages] == [
        "a",
        "It was quiet.",
        "b",
    ]


async def test_changed_question_is_answered_again_in_place(database: Database) -> None:
    setup = Setup(database, ["one"], ["other"])
    await setup.say(make_incoming("a", key="5:70"), on("70", "/edit c", key="5:71"))
    assert setup.texts == ["other"]
    assert await setup.history() == [("user", "c"), ("assistant", "other")]


async def test_question_can_be_edited_by_its_author_only(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say(make_incoming("a", key="5:70", author=BOB), on("70", "/edit c", key="5:71"))
    assert setup.texts[1] == "⚠ Only the person who wrote that message can change it."
    with pytest.raises(UserError, match="Only the person who wrote that"):
        await setup.buttons.find_text_to_edit(on("70", "/edit", key="5:72"))
    assert await setup.buttons.find_text_to_edit(on("70", "/edit", key="5:73", by=BOB)) == "a"


async def test_command_in_reply_to_an_unknown_message_is_refused(database: Database) -> None:
    setup = Setup(database)
    for number, command in enumerate(("/retry", "/edit x", "/context")):
        await setup.say(on("999", command, key=f"5:{number}"))
    assert setup.texts == ["⚠ I don't remember that message."] * 3
