"""Test attachments: sent to the model, described in the history, reported if unreadable."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select, update
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    Address,
    Incoming,
    IncomingMessage,
    MediaItem,
    MediaKind,
    MessageEdit,
    Quote,
    WakeReason,
)
from bot.chat.prompt import Prompt
from bot.chat.session import Turn, build_repeated_question
from bot.errors import BackendUnavailable, PlatformError
from bot.media.voice_messages import VoiceTranscriber
from bot.runtime.in_process import InProcessRateLimits
from bot.runtime.tasks import StopFlag
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.tables import turn
from bot.turn.limits.rate_limits import AnswerLimits, LimitSettings
from bot.turn.message_groups import user_turn
from tests.fakes import FakeBackend, FakeClock, FakeSurface
from tests.media.file_samples import picture
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import CHAT, FILES, SeeingFakeBackend, Setup, download, pressed

PICTURE = MediaItem(MediaKind.IMAGE, "cat.png", None, "cat")
NOTES = MediaItem(MediaKind.FILE, "notes.txt", None, "notes")
BLIND = "I can't look at pictures here. Please tell me in words instead."


def newest(prompt: Prompt) -> str:
    return prompt.messages[-1].content


async def test_picture_is_in_the_prompt_but_never_stored(database: Database) -> None:
    setup = Setup(database, backend=SeeingFakeBackend(["A cat."]), download=download)
    await setup.say(replace(make_incoming("what is it?"), attachments=(PICTURE,)))
    [prompt] = setup.backend.prompts
    assert [one.url[:22] for one in prompt.messages[-1].images] == ["data:image/jpeg;base64"]
    assert newest(prompt) == "what is it?\n[picture cat.png]"
    assert await setup.history() == [
        ("user", "what is it?\n[picture cat.png]"),
        ("assistant", "A cat."),
    ]
    [(_, receipt)] = await Receipts(database).find_for_last_message(CHAT)
    assert receipt.prompt.messages[-1].parts == ()


async def test_model_without_vision_gets_a_description_of_the_picture(database: Database) -> None:
    setup = Setup(database, ["Hm."], download=download)
    await setup.say(replace(make_incoming("what is it?"), attachments=(PICTURE, NOTES)))
    [prompt] = setup.backend.prompts
    assert newest(prompt) == (
        "[file notes.txt]\n> milk\n> eggs\n\n"
        "You cannot see or read: [picture cat.png]\n\n"
        "what is it?\n[picture cat.png]\n[file notes.txt]"
    )
    assert setup.texts == [f"Hm.\n\n{BLIND}"]


async def test_unreadable_file_is_reported_once_even_after_an_edit(database: Database) -> None:
    setup = Setup(database, ["Hm."], ["Oh."], download=download)
    asked = replace(make_incoming("what is it?", key="5:1"), attachments=(PICTURE,))
    await setup.say(asked)
    edited = MessageEdit("5:1:e1", replace(asked, text="who is it?"), asked.at)
    await setup.inbox.receive([edited], {})
    await setup.work()
    assert setup.texts == [f"Oh.\n\n{BLIND}"]


async def test_picture_without_text_for_a_model_without_vision_gets_a_notice(
    database: Database,
) -> None:
    setup = Setup(database, ["Hm."], download=download)
    await setup.say(replace(make_incoming(""), attachments=(PICTURE,)))
    assert (setup.texts, setup.backend.prompts) == ([BLIND], [])


async def test_long_file_is_cut_to_half_of_the_token_budget(database: Database) -> None:
    backend = FakeBackend(["Hm."])
    setup = Setup(database, backend=backend, preset={"max_input_tokens": 200}, download=download)
    FILES["long"] = b"word " * 2000
    long = MediaItem(MediaKind.FILE, "long.txt", None, "long")
    await setup.say(replace(make_incoming("so?"), attachments=(long,)))
    assert "\n[the rest is omitted]\n" in newest(backend.prompts[0])


async def test_observed_picture_is_mentioned_but_not_sent_to_the_model(database: Database) -> None:
    setup = Setup(database, backend=SeeingFakeBackend(["Hm."]), download=download)
    shown = replace(make_incoming("", key="5:1", wake=None), attachments=(PICTURE,))
    await setup.say(shown, make_incoming("well?", key="5:2", wake=WakeReason.MENTION))
    [prompt] = setup.backend.prompts
    assert "> [picture cat.png]\n" in newest(prompt)
    assert prompt.messages[-1].images == ()


DISCORD = MediaItem(
    MediaKind.IMAGE, "cat.png", 70, "https://cdn.discordapp.com/attachments/1/2/cat.png?ex=1&hm=2"
)
TELEGRAM = MediaItem(MediaKind.IMAGE, "", 70, "AgACAgIAAxkBAAIB")
LISTED = MediaItem(MediaKind.FILE, "notes.txt", 9, "notes")
FILES |= {DISCORD.source: picture(), TELEGRAM.source: picture()}
STORED = select(turn.c.files).order_by(turn.c.id)


def question(*files: MediaItem, text: str = "what is it?", key: str = "5:70") -> IncomingMessage:
    return replace(make_incoming(text, key=key), attachments=files)


def press(asked: IncomingMessage) -> Incoming:
    return pressed(ButtonAction.RETRY, f"telegram:{asked.external_key}/0")


def command(_asked: IncomingMessage) -> Incoming:
    return make_incoming("/retry", key="5:71")


def from_here(asked: IncomingMessage) -> Incoming:
    said = make_incoming("/retry", key="5:71")
    return replace(said, quote=Quote(None, asked.message_id, ""))


def edit(asked: IncomingMessage) -> Incoming:
    said = make_incoming("/edit who is it?", key="5:71")
    return replace(said, quote=Quote(None, asked.message_id, ""))


def platform_edit(asked: IncomingMessage) -> Incoming:
    return MessageEdit("5:70:e1", replace(asked, text="who is it?"), asked.at)


async def stored_files(database: Database) -> list[str | None]:
    return list(await database.read(lambda c: c.execute(STORED).scalars().all()))


def make_setup(
    database: Database, *answers: str | Exception, surface: FakeSurface | None = None
) -> Setup:
    backend = SeeingFakeBackend(*([one] for one in answers))
    return Setup(database, backend=backend, download=download, surface=surface)


@pytest.mark.parametrize("again", [press, command, from_here, edit, platform_edit])
async def test_retry_sends_the_text_file_of_the_question_again(
    database: Database, again: Callable[[IncomingMessage], Incoming]
) -> None:
    setup = make_setup(database, "one", "two", "three")
    asked = question(LISTED)
    await setup.say(asked)
    await setup.say(again(asked))
    await setup.say(make_incoming("/retry", key="5:72"))
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert [one.startswith("[file notes.txt]\n> milk\n> eggs\n\n") for one in contents] == [
        True
    ] * 3
    assert [one.count("[file notes.txt]") for one in contents] == [2] * 3


@pytest.mark.parametrize("again", [press, command])
async def test_retry_of_a_failed_answer_sends_the_file_again(
    database: Database, again: Callable[[IncomingMessage], Incoming]
) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    setup = make_setup(database, away, "two", "three")
    asked = question(LISTED)
    await setup.say(asked, again(asked))
    await setup.say(make_incoming("/retry", key="5:72"))
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert [one.count("> milk\n> eggs\n") for one in contents] == [1, 1, 1]
    assert await setup.history() == [
        ("user", "what is it?\n[file notes.txt]"),
        ("assistant", "three"),
    ]


def test_retry_sends_the_files_of_gathered_questions_again() -> None:
    asked, at = question(), question().at
    session = [
        Turn("user", "old", ALICE, at, files=(TELEGRAM,)),
        Turn("assistant", "answer", None, at, "nora"),
        Turn("user", "[file notes.txt]", ALICE, at, files=(LISTED,)),
        Turn("user", asked.text, ALICE, at, message_id="70"),
    ]
    assert build_repeated_question(asked, session[-1], session[:-1]).earlier_files == (LISTED,)
    gathered = replace(asked, earlier_files=(LISTED,))
    assert user_turn(gathered).files == ()  # they are kept with the message that they came with
    assert user_turn(question(LISTED)).files == (LISTED,)


@pytest.mark.parametrize("again", [press, command])
async def test_missing_file_is_reported_and_the_question_is_answered_without_it(
    database: Database, again: Callable[[IncomingMessage], Incoming]
) -> None:
    is_gone = False

    async def expiring(address: Address, item: MediaItem, max_bytes: int) -> bytes:
        if is_gone:
            raise PlatformError("the server answered 404")
        return await download(address, item, max_bytes)

    setup = Setup(database, backend=SeeingFakeBackend(["one"], ["two"]), download=expiring)
    asked = question(LISTED)
    await setup.say(asked)
    is_gone = True
    await setup.say(again(asked))
    assert "milk" not in setup.backend.prompts[-1].messages[-1].content
    notice = "⚠ I could not read notes.txt: it could not be downloaded."
    assert setup.texts[-1] == f"two\n\n{notice}"


async def test_file_stored_by_another_version_is_ignored(database: Database) -> None:
    setup = make_setup(database, "one")
    asked = question(LISTED)
    await setup.say(asked)
    unknown = '[{"kind":"hologram","source":"1"}]'
    await database.write(lambda c: c.execute(update(turn).values(files=unknown)).rowcount)
    setup = make_setup(database, "two", surface=setup.surface)
    await setup.say(press(asked))
    assert setup.texts == ["two"]


async def test_picture_removed_by_an_edit_is_not_sent_again(database: Database) -> None:
    setup = make_setup(database, "one", "two", "three")
    asked = question(LISTED)
    await setup.say(asked)
    await setup.say(MessageEdit("5:70:e1", replace(asked, attachments=()), asked.at))
    await setup.say(make_incoming("/retry", key="5:72"))
    contents = [one.messages[-1].content for one in setup.backend.prompts]
    assert ["> milk" in one for one in contents] == [True, False, False]
    assert set(await stored_files(database)) == {None}


async def test_file_references_are_stored_only_with_questions(database: Database) -> None:
    setup = make_setup(database, "one")
    shown = replace(question(DISCORD, key="5:69"), wake=None)
    sticker = MediaItem(MediaKind.STICKER, "wave", None, "sticker")
    await setup.say(shown, question(LISTED, sticker))
    [background, asked, answer] = await stored_files(database)
    assert (background, answer) == (None, None)
    assert asked == '[{"kind":"file","name":"notes.txt","size":9,"source":"notes"}]'


DEAF = "I can't listen to voice messages here. Please tell me in words instead."
VOICE = MediaItem(MediaKind.VOICE, "", 2000, "v1")
FILES["v1"] = b"OggS"


class TranscribingFakeBackend(FakeBackend):
    """Transcribes every voice message as `words`."""

    can_transcribe = True

    def __init__(self, words: str, *scripts: list[str]) -> None:
        super().__init__(*scripts)
        self.words = words
        self.heard: list[tuple[str, bytes]] = []

    @override
    async def transcribe(self, name: str, audio: bytes) -> str:
        self.heard.append((name, audio))
        if not self.words:
            raise BackendUnavailable("away")
        return self.words


def spoken(text: str = "", wake: WakeReason | None = WakeReason.DM) -> IncomingMessage:
    return replace(make_incoming(text, wake=wake), attachments=(VOICE,))


@pytest.mark.parametrize(
    ("caption", "question"), [("", "what time is it?"), ("Well:", "Well:\nwhat time is it?")]
)
async def test_transcribed_voice_message_is_answered(
    database: Database, caption: str, question: str
) -> None:
    backend = TranscribingFakeBackend("what time is it?", ["Noon."])
    setup = Setup(database, backend=backend, download=download)
    await setup.say(spoken(caption))
    assert backend.heard == [("voice.ogg", b"OggS")]
    assert [one.content for one in backend.prompts[0].messages] == [question]
    assert await setup.history() == [("user", question), ("assistant", "Noon.")]
    assert setup.texts == ["Noon."]


async def test_voice_messages_over_the_limit_are_not_transcribed() -> None:
    clock, backend = FakeClock(), TranscribingFakeBackend("hello")
    settings = LimitSettings(answers_per_person=2, answers_per_channel=3, seconds=3600)
    limits = AnswerLimits(InProcessRateLimits(clock), clock, settings)
    voices = VoiceTranscriber(download, {"p": backend}, limits.admits_voice)
    texts = []
    for author in (ALICE, ALICE, ALICE, BOB, BOB):
        said = await voices.transcribe(replace(spoken(), author=author), "p")
        texts.append(said.text)
    assert texts == ["hello", "hello", "", "hello", ""]
    assert len(backend.heard) == 3
    assert (await limits.admit(spoken(), StopFlag()))[0], "answers count apart"


@pytest.mark.parametrize("caption", ["", "what do they say?"])
async def test_only_three_voice_messages_of_a_message_are_transcribed(caption: str) -> None:
    backend = TranscribingFakeBackend("hello")
    said = spoken(caption)
    said = replace(said, attachments=said.attachments * 4)
    transcribed = await VoiceTranscriber(download, {"p": backend}).transcribe(said, "p")
    assert transcribed.text.split("\n") == [caption] * bool(caption) + ["hello"] * 3
    assert len(transcribed.attachments) == 1


async def test_key_spoken_in_a_voice_message_is_masked(database: Database) -> None:
    key = "sk-" + "a1B2" * 12
    backend = TranscribingFakeBackend(f"my key is {key}", ["Hm."])
    await Setup(database, backend=backend, download=download).say(spoken())
    assert key not in backend.prompts[0].messages[-1].content


@pytest.mark.parametrize(
    "backend", [TranscribingFakeBackend(""), FakeBackend()], ids=["away", "deaf"]
)
async def test_voice_message_without_a_transcript_gets_a_notice(
    database: Database, backend: FakeBackend
) -> None:
    setup = Setup(database, backend=backend, download=download)
    await setup.say(spoken())
    assert (setup.texts, backend.prompts) == ([DEAF], [])


async def test_observed_voice_messages_are_not_transcribed(database: Database) -> None:
    backend = TranscribingFakeBackend("a secret")
    await Setup(database, backend=backend, download=download).say(spoken(wake=None))
    assert backend.heard == []
