"""Test people's control over their data: deletion, export, opting out, overhearing."""

import asyncio
import gc
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    IncomingMessage,
    MediaItem,
    MediaKind,
    MessageEdit,
    Person,
    Quote,
    WakeReason,
    create_forget_requests,
)
from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, Prompt, ReasoningDelta
from bot.chat.session import Consent
from bot.commands.privacy import OPTED_OUT_NOTICE
from bot.errors import Refused
from bot.markup.styled_text import style_markdown
from bot.platforms.discord.markup import to_discord_markdown
from bot.ports import PictureHost
from bot.prompting.speakers import clean_name
from bot.prompting.text.confusables import confusable_skeleton
from bot.runtime.tasks import cancel_and_wait
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from bot.storage.receipts import Receipts
from bot.storage.tables import inbox, story, story_revision
from tests.attacks import with_ours
from tests.fakes import (
    LIMITS,
    FakeBackend,
    FakeClock,
    FakePlatform,
    FakeSurface,
    PrivatePlatform,
)
from tests.samples import ALICE, BOB, make_incoming, read_session
from tests.turn.counted_service import RunningParts, running_parts
from tests.turn.setup import CHAT, Setup, answering, pass_time_until, pressed


def said(text: str, key: str, author: Person = ALICE, chat: str = "5") -> IncomingMessage:
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return make_incoming(text, key=key, author=author, chat=chat, wake=wake)


async def test_deletion_by_an_operator_clears_cached_settings(database: Database) -> None:
    setup = Setup(database)
    await setup.say(said("mine", "5:1"))
    changed = ["discord:guild:1"]
    requests = create_forget_requests([CHAT], "operator:1", None, setup.clock.utc_now(), changed)
    await setup.inbox.receive(requests, {})
    await setup.work()
    assert setup.memory.calls == ["forget discord:guild:1", f"forget {CHAT}"]


class PicturePlatform(FakePlatform, PictureHost):
    """A platform that records which pictures of characters are kept."""

    kept: Collection[str] = ()

    @override
    async def host_picture(self, png: bytes) -> str:
        return "https://pictures.example/1.png"

    @override
    async def delete_unused_pictures(self, kept: Collection[str]) -> None:
        self.kept = kept


async def test_forget_me_deletes_pictures_of_own_characters(database: Database) -> None:
    surface = FakeSurface()
    platform = PicturePlatform("telegram", surface)
    setup = Setup(database, surface=surface, platforms={"telegram": platform})
    picture, characters = await platform.host_picture(b""), setup.resolver.characters
    about = f"keeps bees\t{picture}"
    await characters.record_character(f"{ALICE.id}/Mira", "{}", about, ALICE.id, is_audited=False)
    assert await characters.list_descriptions(ALICE.id) == {f"{ALICE.id}/Mira": "keeps bees"}
    dropping = asyncio.create_task(setup.container.delete_unused_pictures())
    await pass_time_until(setup, lambda: platform.kept)
    assert platform.kept == {picture}
    await setup.say(said("/forget me", "5:1"), pressed(ButtonAction.FORGET, "telegram:5:1/0"))
    await pass_time_until(setup, lambda: not platform.kept)
    await cancel_and_wait([dropping])


async def test_forget_me_asks_for_confirmation_and_covers_every_conversation(
    database: Database,
) -> None:
    setup = Setup(database)
    await setup.say(said("mine", "5:1"), said("theirs", "5:2", BOB), said("mine too", "5:3"))
    await setup.receive(said("elsewhere", "6:1", chat="6"))
    await setup.work("telegram:6")
    await setup.say(said("/me I am a tall knight", "5:4"), said("/forget me", "5:5"))
    assert setup.texts[-1].startswith("Delete everything that you said in all channels")
    assert len(await setup.history()) == 6
    question = "telegram:5:5/0"
    for_others = await setup.buttons.find_refusal_reason(
        pressed(ButtonAction.FORGET, question, by=BOB)
    )
    assert for_others == "Only the person who asked can use this button."
    await setup.say(pressed(ButtonAction.FORGET, question))
    await setup.work("telegram:6")
    assert [role for role, _ in await setup.history()] == ["user", "assistant"]
    assert (await setup.history())[0] == ("user", "theirs")
    assert (await read_session(database, "telegram:6")).turns == ()
    assert await Receipts(database).find_for_last_message("telegram:6") == []
    assert {"forget telegram:5", "forget telegram:6"} <= set(setup.memory.calls)
    assert setup.texts[-1].startswith("I'm now deleting everything")
    await setup.say(said("/me", "5:9"))
    assert setup.texts[-1].startswith("⚠ You haven't described yourself.")


async def test_forget_me_deletes_notes_that_quote_only_the_person(database: Database) -> None:
    setup = Setup(database, preset={"context": "addressed"})
    ignored = replace(said("ignored", "6:1", chat="6"), wake=None)
    await setup.receive(ignored)
    await setup.work("telegram:6")
    await setup.say(said("mine", "5:1"), said("theirs", "5:2", BOB), said("/settings why", "5:3"))
    assert "“mine”" in setup.texts[-1]
    assert await setup.decisions.describe_recent_decisions("telegram:6")
    await setup.say(said("/forget me", "5:4"), pressed(ButtonAction.FORGET, "telegram:5:4/0"))
    await setup.say(said("/settings why", "5:5"))
    assert "“theirs”" in setup.texts[-1]
    assert "“mine”" not in setup.texts[-1]
    assert await setup.decisions.describe_recent_decisions("telegram:6") == ()


async def test_forget_me_can_be_declined(database: Database) -> None:
    setup = Setup(database)
    await setup.say(said("mine", "5:1"), said("/forget me", "5:2"))
    await setup.say(pressed(ButtonAction.KEEP_DATA, "telegram:5:2/0"))
    assert setup.texts[-1] == "Nothing was deleted."
    assert len(await setup.history()) == 2


async def test_forget_last_deletes_the_newest_question_and_its_answers(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say(said("a", "5:1"), said("b", "5:2"))
    await setup.say(said("/forget last", "5:3", BOB))
    assert setup.texts[-1].startswith("⚠ Only an admin can make me forget")
    await setup.say(said("/forget last", "5:4"))
    assert await setup.history() == [("user", "a"), ("assistant", "one")]
    assert setup.texts[-1].startswith("I have forgotten that message")


async def test_export_contains_only_messages_of_the_person_who_asks(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say(said("mine", "5:1"), said("theirs", "5:2", BOB), said("/me a knight", "5:3"))
    await setup.say(said("/export", "5:4"))
    assert setup.texts[-1] == "Everything you said to me: 1 message."
    [file] = setup.surface.files.values()
    exported = json.loads(file.text)
    assert [one["text"] for one in exported["messages"]] == ["mine"]
    assert list(exported["descriptions"].values()) == ["a knight"]


@pytest.mark.parametrize("refuses", [False, True])
async def test_private_reply_is_sent_to_a_private_chat(
    database: Database, *, refuses: bool
) -> None:
    surface = FakeSurface(replace(LIMITS, has_private_chats=True))
    platform = PrivatePlatform("telegram", surface, refuses=refuses)
    setup = Setup(database, surface=surface, platforms={"telegram": platform})
    await setup.say(said("mine", "5:1"), said("/export", "5:2"), said("/forget last", "5:3", BOB))
    chats = [message.address.chat for message in surface.sent[1:]]
    assert sorted(chats) == (["5", "5"] if refuses else ["dm-1", "dm-2"])
    if refuses:
        assert setup.texts[1:] == ["Open a chat with me."] * 2
    else:
        [file] = surface.files.values()
        assert [one["text"] for one in json.loads(file.text)["messages"]] == ["mine"]


async def test_no_messages_are_observed_after_an_admin_turns_overhearing_off(
    database: Database,
) -> None:
    setup = Setup(database, preset={"context": "all"})
    await setup.say(said("/settings overhear off", "5:1", BOB))
    assert setup.texts[-1].startswith("⚠ Only an admin can")
    await setup.say(make_incoming("by the way", key="5:2", wake=None))
    assert len(await setup.history()) == 1
    await setup.say(said("/settings overhear off", "5:3"))
    await setup.say(make_incoming("among us", key="5:4", wake=None))
    assert len(await setup.history()) == 1
    await setup.say(said("/settings overhear on", "5:5"))
    await setup.say(make_incoming("once more", key="5:6", wake=None))
    assert [text for _, text in await setup.history()] == ["by the way", "once more"]


def line(text: str, key: str, author: Person = BOB) -> IncomingMessage:
    return make_incoming(text, key=key, author=author, wake=None)


def asked(setup: Setup) -> str:
    return str(setup.backend.prompts[-1].messages)


OFF = "You've switched me off for yourself"


async def test_messages_of_a_person_who_opted_out_are_neither_stored_nor_read(
    database: Database, tmp_path: Path
) -> None:
    async def read_before(_said: IncomingMessage, _limit: int) -> Sequence[IncomingMessage]:
        return [line("SECRET before", "9:1"), line("public before", "9:2", ALICE)]

    setup = Setup(
        database, preset={"context": "all", "wake": {"words": ["nora"]}}, read_before=read_before
    )
    at_bob = make_incoming("SECRET question", key="5:2", author=BOB, wake=WakeReason.MENTION)
    elsewhere = make_incoming("SECRET there", key="6:1", author=BOB, chat="6", wake=None)
    await setup.receive(elsewhere)
    await setup.work("telegram:6")
    await setup.say(line("SECRET heard", "5:1"), at_bob)
    answer = [*setup.surface.messages][-1]
    await setup.say(said("/me SECRET knight", "5:3", BOB), said("/settings me off", "5:4", BOB))
    assert setup.texts[-1].startswith("From now on, I don't store what you write")
    await setup.work("telegram:6")
    assert await setup.history() == [("user", "public before")]
    assert (await read_session(database, "telegram:6")).turns == ()

    edit = MessageEdit("e1", replace(at_bob, text="SECRET edit"), at_bob.at)
    file = MediaItem(MediaKind.FILE, "SECRET.txt")
    quote = Quote(BOB, "2", "SECRET question", (file,))
    await setup.say(line("SECRET nora", "5:5"), line("public talk", "5:6", ALICE), edit)
    await setup.say(said("/me SECRET knight", "5:7", BOB), replace(at_bob, external_key="5:8"))
    assert [one.startswith(OFF) for one in setup.texts[-2:]] == [False, True], "one for a while"
    assert len(setup.backend.prompts) == 1
    of_ours = Quote(None, answer, "SECRET answer", is_ours=True)
    for number, one in enumerate((quote, of_ours)):
        assert traces(tmp_path, "SECRET") == []
        question = make_incoming("well?", key=f"5:9{number}", wake=WakeReason.MENTION)
        await setup.say(replace(question, quote=one))
        assert "SECRET" not in asked(setup)
        assert "public talk" in asked(setup)


async def test_waiting_messages_are_withheld_once_their_author_opts_out(database: Database) -> None:
    setup = Setup(database, preset={"context": "all"})
    waiting = make_incoming("SECRET", key="6:1", author=BOB, chat="6", wake=WakeReason.MENTION)
    quote = Quote(BOB, "1", "SECRET")
    quoting = replace(make_incoming("really?", key="6:2", chat="6", wake=None), quote=quote)
    await setup.receive(waiting, quoting)
    await setup.say(said("/settings me off", "5:1", BOB))
    await setup.work("telegram:6")
    assert setup.texts[-1].startswith(OFF)
    assert setup.backend.prompts == []
    assert [one.text for one in (await read_session(database, "telegram:6")).turns] == ["really?"]


async def test_unfinished_answer_is_deleted_when_its_asker_opts_out(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["SECRET", go_on, " answer"])
    async with answering(setup, said("SECRET question", "5:1", BOB)) as worker:
        await setup.history_scopes.set_consent(BOB.id, Consent.OFF)
        await setup.container.deletions.request_person_deletion(said("off", "6:1", BOB))
        go_on.set()
        await worker
    await setup.work()
    assert await setup.history() == []


@pytest.mark.parametrize(
    "text", ["/help SECRET", "/privacy", "/export", "/settings me", "/Forget ME"]
)
async def test_people_who_opted_out_can_still_use_their_own_commands(
    database: Database, text: str
) -> None:
    setup = Setup(database)
    await setup.say(said("/settings me off", "5:1", BOB))
    await setup.say(replace(said(text, "5:2", BOB), is_private=True))
    assert (setup.texts[-1] == OPTED_OUT_NOTICE) is ("edit" in text)
    stored = select(inbox.c.payload)
    assert "SECRET" not in str(await database.read(lambda c: c.execute(stored).scalars().all()))


async def test_buttons_of_a_person_who_opted_out_request_no_answer(database: Database) -> None:
    setup = Setup(database, ["theirs"])
    await setup.say(said("public", "5:1"), said("/settings menu", "5:2", BOB))
    await setup.say(said("/settings me off", "5:3", BOB))
    about = replace(pressed(ButtonAction.ENTER_BIO, "telegram:5:2/0", by=BOB), values=("SECRET",))
    await setup.say(about, pressed(ButtonAction.CONTINUE, by=BOB, key="2"))
    assert [one.startswith(OFF) for one in setup.texts[-2:]] == [True, True]
    assert len(setup.backend.prompts) == 1
    await setup.say(pressed(ButtonAction.CONTINUE, key="3"))
    assert len(setup.backend.prompts) == 2


async def test_opting_out_is_the_only_setting_that_survives_forget_me(
    database: Database,
) -> None:
    setup, data = Setup(database), PersonalData(database, FakeClock())
    await setup.say(said("/settings me", "5:1"))
    assert setup.texts[-1].startswith("here: what you say stays in the chat where you said it.")
    for number, choice in enumerate(("here", "server", "everywhere")):
        await setup.say(said(f"/settings me {choice}", f"5:2{number}"))
        assert setup.texts[-1].startswith(f"{choice}: ")
        assert (await data.export(ALICE.id))["consent"] == choice
    await setup.say(said("/forget me", "5:3"), pressed(ButtonAction.FORGET, "telegram:5:3/0"))
    assert setup.texts[-1].startswith("I'm now deleting")
    assert (await data.export(ALICE.id))["consent"] is None
    await setup.say(said("/settings me off", "5:4"))
    await setup.say(said("/forget me", "5:5"))
    await setup.say(pressed(ButtonAction.FORGET, "telegram:5:5/0", key="2"))
    assert "I'm still switched off for you" in setup.texts[-1]
    await setup.say(said("hello?", "5:6"), said("/settings me reset", "5:7"))
    assert setup.texts[-1].startswith("Your choice was deleted")
    assert (await data.export(ALICE.id))["consent"] is None
    await setup.say(said("hello!", "5:8"))
    assert "hello!" in asked(setup)
    assert "hello?" not in asked(setup)


async def test_people_writing_as_a_group_cannot_give_or_refuse_consent(database: Database) -> None:
    setup = Setup(database)
    await setup.say(said("/settings me perhaps", "5:1"))
    assert setup.texts[-1].startswith("⚠ Use /settings me off, here")
    await setup.say(said("/settings me off", "5:2", Person("telegram:5", "Group")))
    assert setup.texts[-1].startswith("⚠ You are writing as the group")


class EchoBackend(FakeBackend):
    """A model that repeats the newest message and keeps no reference to it."""

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        yield Delta(f"You said {prompt.messages[-1].content}")
        yield Finish(FinishReason.STOP)


def holders_of(backwards: str) -> list[str]:
    """Describe the objects that contain a word, given backwards so that this call adds none."""
    gc.collect()
    word, found = backwards[::-1], []
    seen: set[int] = set()
    waiting = gc.get_objects()
    while waiting:
        one = waiting.pop()
        for each in gc.get_referents(one):
            if isinstance(each, str):
                if each is not word and word in each:
                    found.append(f"{type(one).__name__}: {str(one)[:200]}")
            elif isinstance(each, bytes):
                if word.encode() in each:
                    found.append(f"{type(one).__name__}: bytes")
            elif not gc.is_tracked(each) and id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)
    return found


def forget_calls(service: RunningParts) -> None:
    """Clear the messages and calls that the fake platform keeps."""
    surface = service.surface
    shown = (surface.messages, surface.shown, surface.contents)
    for kept in (*shown, surface.calls, surface.sent):
        kept.clear()


def render_everywhere(text: str) -> None:
    """Render a text as all platforms do."""
    style_markdown(f"**{text}**")
    to_discord_markdown(f"| {text} |\n|---|\n| {text} |")
    clean_name(text)
    confusable_skeleton(text)


@pytest.mark.usefixtures("all_objects")
async def test_no_object_in_memory_contains_forgotten_words(tmp_path: Path) -> None:
    backwards = f"canary{secrets.token_hex(4)}"[::-1]
    async with running_parts(tmp_path, EchoBackend()) as service:
        for number in range(4):
            text = f"{number}: ä {backwards[::-1]}"
            await service.answer(f"5:{number}", None, text=text)
            del text
            render_everywhere(f"{backwards[::-1]} {number}")
        forget_calls(service)
        assert holders_of(backwards) != []
        await service.answer("5:9", None, text="/forget")
        forget_calls(service)
        assert holders_of(backwards) == []


CANARY = "canary-5e1f0d"
LONG = f"{CANARY} " * 80  # with others of its kind more than a page of the database


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database, [f"So your word is {CANARY}."])


def traces(folder: Path, word: str = CANARY) -> list[str]:
    """Return the files under a folder that contain a word, in any encoding."""
    forms = [word.encode(), word.encode("utf-16-le"), word.encode("utf-16-be")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(form in path.read_bytes() for form in forms)]


async def forget_deletes_everything(setup: Setup, folder: Path) -> None:
    await setup.say(*[f"{number} {LONG}" for number in range(30)])
    await setup.say(f"/me I am {CANARY}", "/new", make_incoming(LONG, key="5:90", quote=LONG))
    assert traces(folder)

    await setup.say("/forget")

    assert traces(folder) == []
    await setup.say("/me")
    assert setup.texts[-1].startswith("⚠ You haven't described yourself")


async def forget_waits_for_the_running_turn(setup: Setup, folder: Path) -> None:
    go_on = asyncio.Event()
    setup.backend = FakeBackend([f"{CANARY} ", go_on, LONG])
    setup = Setup(setup.database, backend=setup.backend)
    async with answering(setup, f"say {LONG}") as worker:
        await setup.receive("/forget")
        go_on.set()
        await worker
    assert setup.texts[-1].startswith("Deleted for good: 2 messages")
    assert traces(folder) == []


async def forget_deletes_refused_deliveries(setup: Setup, folder: Path) -> None:
    setup.surface.fail_next("send", *[Refused("they have blocked the bot")] * 3)
    await setup.say(f"say {LONG}")
    await setup.say("/forget")
    assert traces(folder) == []


async def channels_are_separate(setup: Setup, folder: Path) -> None:
    await setup.say(f"my secret is {CANARY}", f"/me I am {CANARY}")
    await _say_elsewhere(setup, make_incoming("what is my secret?", chat="-100", key="-100:1"))
    await _say_elsewhere(
        setup, make_incoming("and in a topic?", chat="-100", thread="5", key="-100:2")
    )
    assert len(setup.backend.prompts) == 3
    for prompt in setup.backend.prompts[1:]:
        assert CANARY not in repr(prompt)


async def answers_are_not_cached_across_users(setup: Setup, folder: Path) -> None:
    """Check that the same question of another person is sent to the model again."""
    await setup.say(make_incoming(f"what is {CANARY}?", key="5:1", author=ALICE))
    there = make_incoming(f"what is {CANARY}?", chat="6", key="6:1", author=BOB)
    await _say_elsewhere(setup, there)
    first, second = setup.backend.prompts
    assert (first.asked_by, second.asked_by) == (ALICE.id, BOB.id)
    assert (first.conversation, second.conversation) == (CHAT, "telegram:6")
    assert second.messages[-1].content == f"what is {CANARY}?"


async def forget_keeps_other_channels(setup: Setup, folder: Path) -> None:
    await _say_elsewhere(setup, make_incoming("/me I am Robin", chat="55", key="55:1"))
    await setup.say("/forget")
    await _say_elsewhere(setup, make_incoming("/me", chat="55", key="55:2"))
    assert setup.texts[-1] == "Your description here: I am Robin"


async def forget_me_reaches_a_group_without_the_bot(setup: Setup, folder: Path) -> None:
    """Use /forget me in private after the bot was removed from the group."""
    setup.surface.fail_next("send", Refused("bot was kicked from the group chat"))
    await _say_elsewhere(setup, make_incoming(f"say {LONG}", chat="-100", key="-100:1"))
    assert traces(folder)
    await setup.say(make_incoming("/forget me", key="5:5", wake=WakeReason.COMMAND))
    await setup.say(pressed(ButtonAction.FORGET, "telegram:5:5/0"))
    await setup.work("telegram:-100")
    assert traces(folder) == []


async def _say_elsewhere(setup: Setup, message: IncomingMessage) -> None:
    await setup.receive(message)
    await setup.work(message.address.conversation)


async def stories_hold_no_words_of_people(setup: Setup, folder: Path) -> None:
    """Check that the story index contains only texts of the operator."""
    await setup.say(LONG, f"/me I am {CANARY}", make_incoming(LONG, key="5:9", quote=LONG))
    found = await setup.database.read(
        lambda c: [c.execute(select(one)).all() for one in (story, story_revision)]
    )
    assert CANARY not in repr(found)
    await forget_deletes_everything(setup, folder)


Scenario = Callable[[Setup, Path], Awaitable[None]]
SCENARIOS: Mapping[str, Scenario] = {
    "/forget me removes rows": forget_deletes_everything,
    "bot kicked from guild": forget_me_reaches_a_group_without_the_bot,
    "/forget while turn runs": forget_waits_for_the_running_turn,
    "/forget: RAG chunks and embeddings": stories_hold_no_words_of_people,
    "/forget: outbox, logs, Redis streams, dead letters": forget_deletes_refused_deliveries,
    "DM content used in group answer": channels_are_separate,
    "cached answer served to other user": answers_are_not_cached_across_users,
}
OWN_SCENARIOS: Mapping[str, Scenario] = {
    "/forget with much to delete": forget_deletes_everything,
    "/forget in the next chat": forget_keeps_other_channels,
    "topic of the same number as a chat": channels_are_separate,
}
ELSEWHERE = {
    "connection-pool mix-up (cancelled Redis read)": (
        "tests/contracts/test_rate_limits.py::"
        "test_cancelled_call_does_not_mix_up_the_results_of_later_calls"
    ),
}


@pytest.mark.parametrize(("title", "given"), with_ours("privacy", OWN_SCENARIOS))
async def test_privacy_attack_reveals_no_data_of_other_people(
    setup: Setup, tmp_path: Path, title: str, given: Any
) -> None:
    scenario = OWN_SCENARIOS.get(title) or SCENARIOS.get(title)
    if scenario is None:
        pytest.skip(f"runs in {ELSEWHERE[title]}")
    await scenario(setup, tmp_path)


async def test_tokens_that_the_model_writes_are_masked_everywhere(database: Database) -> None:
    key = "sk-proj-FAKE0000000000000000000000000000"
    pieces = ["The key is ", *(key[at : at + 3] for at in range(0, len(key), 3)), ", keep it."]
    backend = FakeBackend([ReasoningDelta(f"It has {key}."), *pieces])
    setup = Setup(database, backend=backend)
    await setup.say("which key?")
    assert setup.texts == ["The key is ***0000, keep it."]
    assert not any(key[:12] in text for _, text in setup.surface.calls)
    assert (await setup.history())[-1] == ("assistant", "The key is ***0000, keep it.")
    [(_, receipt)] = await Receipts(database).find_for_last_message(CHAT)
    assert (receipt.answer, receipt.thoughts) == ("The key is ***0000, keep it.", "It has ***0000.")
