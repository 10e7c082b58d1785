"""Several characters in one channel: they answer one after the other, and readers see who does."""

import asyncio

from inline_snapshot import snapshot

from bot.chat.incoming import WakeReason
from bot.chat.story import Story
from bot.errors import BackendUnavailable
from bot.prompting.presets.preset import Preset
from bot.storage.sql.database import Database
from bot.storage.sql.receipts import SqlReceipts
from bot.stories.retrieve import RetrievedStories
from tests.fakes import FakeBackend, ScriptStep
from tests.samples import BOB, make_incoming
from tests.turn.test_worker import CHAT, Stage

NILS: dict[str, object] = {"name": "nils", "role_name": "Nils Holm", "greeting": "Evening."}
QUIET: dict[str, object] = {"name": "quiet", "talkativeness": 0}


async def on_stage(
    database: Database, *scripts: list[ScriptStep], nils: dict[str, object] = NILS, **given: object
) -> Stage:
    """A channel in which nora and nils answer."""
    backend = FakeBackend(*scripts)
    stage = Stage(database, backend=backend, others=[nils, QUIET], **given)  # type: ignore[arg-type]
    await stage.talk("/preset add nils")
    stage.surface.messages.clear()
    return stage


def last_prompt(stage: Stage) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in stage.backend.prompts[-1].messages]


async def test_each_hears_those_before_and_all_is_one_turn(database: Database) -> None:
    stage = await on_stage(database, ["I am Nora."], ["Nils Holm: And I am Nils."])

    await stage.talk("nora and nils, who are you?")

    assert stage.texts == ["**nora**\nI am Nora.", "**Nils Holm**\nAnd I am Nils."]
    assert last_prompt(stage) == snapshot(
        [
            ("assistant", "Nils Holm:Evening."),
            ("user", "Alice:nora and nils, who are you?"),
            ("user", "nora:I am Nora."),
        ]
    )
    assert stage.backend.prompts[-1].stop == ("\nnora:", "\nAlice:")
    assert await stage.history() == [
        ("assistant", "Evening."),
        ("user", "nora and nils, who are you?"),
        ("assistant", "I am Nora."),
        ("assistant", "And I am Nils."),
    ]


async def test_who_answered_is_remembered(database: Database) -> None:
    stage = await on_stage(database, ["Yes."])
    await stage.talk("nils?")
    *_, newest = (await stage.session()).turns
    assert newest.preset == "nils"


async def test_who_is_called_by_another_character_reacts_and_the_chain_ends(
    database: Database,
) -> None:
    stage = await on_stage(database, ["Ask Nils."], ["No, ask Nora."], ["Ask Nils!"], ["never"])
    await stage.talk("nora, what time is it?")
    assert stage.texts == [
        "**nora**\nAsk Nils.",
        "**Nils Holm**\nNo, ask Nora.",
        "**nora**\nAsk Nils!",
    ]


async def test_a_character_never_speaks_for_another(database: Database) -> None:
    stage = await on_stage(database, ["Fine.\n", "**Nils Holm:** Me ", "too."])
    await stage.talk("nora, how are you?")
    assert stage.texts[0] == "**nora**\nFine."
    assert stage.backend.closed_early == 1


async def test_a_speaker_without_a_word_leaves_the_others_theirs(database: Database) -> None:
    stage = await on_stage(database, ["one"], [BackendUnavailable("away")])
    await stage.talk("nora! nils!")
    assert stage.texts == ["**nora**\none"]


async def test_where_the_first_speaker_fails_the_next_one_answers(database: Database) -> None:
    stage = await on_stage(database, [BackendUnavailable("away")], ["Nils is here."])
    await stage.talk("nora! nils!")
    assert stage.texts == ["**Nils Holm**\nNils is here."]


async def test_where_all_fail_the_first_failure_is_told_once(database: Database) -> None:
    away = BackendUnavailable("away", notice="The model is away.")
    stage = await on_stage(database, [away])
    await stage.talk("nora! nils!")
    assert stage.texts == ["⚠ The model is away."]


async def test_what_is_said_to_others_is_overheard_by_those_who_listen(database: Database) -> None:
    stage = await on_stage(database, ["Yes?"], preset={"context": "all"})
    await stage.talk(make_incoming("nice weather", wake=None, key="5:7"))
    assert stage.texts == []
    await stage.talk(make_incoming("is it not, nils?", wake=None, key="5:8", author=BOB))
    assert stage.texts == ["**Nils Holm**\nYes?"]
    assert last_prompt(stage)[-2:] == [
        ("user", "Alice:nice weather"),
        ("user", "Bob:is it not, nils?"),
    ]


async def test_a_reply_is_for_who_wrote_what_it_replies_to(database: Database) -> None:
    stage = await on_stage(database, ["Once there was a clock."], ["It broke."])
    await stage.talk("nils, a story")
    quote = "**Nils Holm**\nOnce there was a clock."
    await stage.talk(make_incoming("and then?", wake=WakeReason.REPLY, quote=quote, key="5:9"))
    assert stage.texts[-1] == "**Nils Holm**\nIt broke."


async def test_who_has_left_is_still_known_by_name(database: Database) -> None:
    stage = await on_stage(database, ["Bye."], ["Hm."])
    await stage.talk("nils?", "/preset remove nils")
    await stage.talk("who was that?")
    assert stage.texts[-1] == "Hm."
    assert ("user", "Nils Holm:Bye.") in last_prompt(stage)


async def test_a_rehearsal_tells_who_would_answer_and_why(database: Database) -> None:
    stage = await on_stage(database)
    await stage.talk("/preset who nils, are you there?")
    assert stage.texts == snapshot(
        [
            """\
→ nils (100.0): was called by name
· nora (0.0): another character was called\
"""
        ]
    )
    assert stage.backend.prompts == []


async def test_a_rehearsal_of_one_is_short(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.talk("/preset who hello", "/preset who")
    assert stage.texts[0] == "→ nora (0.0): is the only character here, was addressed"
    assert "/preset who good morning" in stage.texts[1]


async def test_one_character_alone_has_no_line_with_its_name(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    await stage.talk("hello")
    assert stage.texts == ["Hi."]


async def test_the_line_with_the_name_is_there_while_the_answer_grows(database: Database) -> None:
    stage = await on_stage(database, ["x" * 40, "y"])
    await stage.talk("nora?")
    assert [text for call, text in stage.surface.calls if call == "send"][-1].startswith(
        "**nora**\n"
    )


async def test_who_has_too_little_room_is_silent_and_takes_no_answer_away(
    database: Database,
) -> None:
    small = {**NILS, "max_input_tokens": 60}
    stage = await on_stage(database, ["I am Nora. " * 30], nils=small)
    await stage.talk("nora and nils, who are you?")
    assert stage.texts == ["**nora**\n" + ("I am Nora. " * 30).strip()]
    assert len(stage.backend.prompts) == 1


async def test_who_fills_in_a_form_does_so_whatever_others_answer(database: Database) -> None:
    form = {**NILS, "prompter": {"kind": "alpaca", "instruction": "Translate {text}."}}
    stage = await on_stage(database, ["Gladly."], ["Guten Tag."], nils=form)
    await stage.talk("/ask nora! nils! text: good day")
    assert stage.texts[-1] == "**Nils Holm**\nGuten Tag."
    assert "good day" in last_prompt(stage)[-1][1]
    assert "Gladly" not in str(last_prompt(stage))


async def test_context_shows_what_each_of_the_speakers_was_sent(database: Database) -> None:
    stage = await on_stage(database, ["I am Nora."], ["And I am Nils."])
    await stage.talk("nora and nils, who are you?", "/context")
    told = "".join(stage.texts[2:])
    assert "nora (version 3) on p/m, receipt 1: " in told
    assert "nils on p/m, receipt 2: " in told

    await stage.talk("/context prompt")
    [file] = stage.surface.files.values()
    assert file.name == "prompt-1-2.txt"
    assert [part.split(":")[0].strip() for part in file.text.split("=" * 80)] == [
        "1 nora",
        "2 nils",
    ]


async def test_a_card_s_lore_knows_the_other_characters_from_its_own(database: Database) -> None:
    seen = {"keys": ["Nils Holm:"], "content": "Nils has a boat.", "enabled": True}
    card: dict[str, object] = {
        "macros": True,
        "role_name": "Nora",
        "system": "{{char}} talks to {{group}}; {{user}} asks.",
        "lorebook": {"entries": [{**seen, "insertion_order": 1}]},
    }
    stage = await on_stage(database, ["Aye."], preset=card)
    await stage.talk("/new", "nora?")
    assert last_prompt(stage)[0] == ("system", "Nora talks to Nils Holm and Alice; Alice asks.")
    await stage.talk("nils?", "nora?")
    assert "\n\nNils has a boat." in last_prompt(stage)[0][1]


async def test_everything_at_once_keeps_to_a_small_budget(database: Database) -> None:
    async def find(preset: Preset, newest: str) -> RetrievedStories | None:
        stories = [Story(n, f"Story {n}: a storm. " * 6, 0.9 - n / 10) for n in range(3)]
        return {newest: stories} if preset.persona else None

    entry = {"keys": ["storm"], "content": "Storms come in March.", "enabled": True}
    full: dict[str, object] = {
        "macros": True,
        "persona": "{{char}} mends clocks.\n{{RAG-dialogues|token<=200|n<=3}}",
        "lorebook": {"entries": [{**entry, "insertion_order": 1}]},
        "summary": {},
        "max_input_tokens": 150,
    }
    stage = await on_stage(database, ["The storm!"], preset=full, retrieve_stories=find)
    summing = asyncio.create_task(stage.summarizer.run())
    await stage.talk("/me a tall knight", *["nora and nils, was there a storm?"] * 6)
    summing.cancel()
    await asyncio.wait([summing])

    await stage.talk(
        make_incoming("nora, a storm?", key="5:99", author=BOB, wake=WakeReason.MENTION)
    )
    [(_, receipt), *_] = await SqlReceipts(database).newest(CHAT)

    assert receipt.preset == "nora"
    assert receipt.tokens <= 150
    assert {span.section for span in receipt.layout} >= {"lore", "newest", "people"}
    assert {one.section for one in receipt.dropped} >= {"history", "stories"}
    assert "RAG" not in last_prompt(stage)[0][1]
