"""Voice messages are written down where a provider can; else there is a clear word."""

from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.incoming import Address, MediaItem, MediaKind, Said, WakeReason
from bot.errors import BackendUnavailable
from bot.media.voice_messages import VoiceMessages
from bot.replying.generate import StopFlag
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.turn.limits.rate_limits import AnswerLimits
from tests.fakes import FakeBackend, FakeClock
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup

DEAF = "I cannot listen to voice messages here. Please tell me in words what it is about."
VOICE = MediaItem(MediaKind.VOICE, "", 2000, "v1")


class TranscribingFakeBackend(FakeBackend):
    """Writes down what it is sent; `words` are what it hears."""

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


async def download(_address: Address, _item: MediaItem, max_bytes: int) -> bytes:
    return b"OggS"[:max_bytes]


def spoken(text: str = "", wake: WakeReason | None = WakeReason.DM) -> Said:
    return replace(make_incoming(text, wake=wake), attachments=(VOICE,))


async def test_words_of_a_voice_message_are_the_question(database: Database) -> None:
    backend = TranscribingFakeBackend("what time is it?", ["Noon."])
    setup = Setup(database, backend=backend, download=download)
    await setup.say(spoken())
    assert backend.heard == [("voice.ogg", b"OggS")]
    assert [one.content for one in backend.prompts[0].messages] == ["what time is it?"]
    assert await setup.history() == [("user", "what time is it?"), ("assistant", "Noon.")]
    assert setup.texts == ["Noon."]


async def test_voice_messages_over_the_limit_are_not_written_down() -> None:
    clock, backend = FakeClock(), TranscribingFakeBackend("hello")
    limits = AnswerLimits(
        InProcessRateLimits(clock), clock, per_person=2, per_channel=3, seconds=3600
    )
    voices = VoiceMessages(download, {"p": backend}, limits.admits_voice)
    texts = []
    for author in (ALICE, ALICE, ALICE, BOB, BOB):
        said = await voices.transcribe(replace(spoken(), author=author), "p")
        texts.append(said.text)
    assert texts == ["hello", "hello", "", "hello", ""]
    assert len(backend.heard) == 3
    assert not (await limits.admit(spoken(), StopFlag())).is_refused, "answers count apart"


async def test_caption_stands_before_the_words(database: Database) -> None:
    backend = TranscribingFakeBackend("seven", ["Yes."])
    await Setup(database, backend=backend, download=download).say(spoken("add this:"))
    assert backend.prompts[0].messages[-1].content == "add this:\nseven"


async def test_pasted_key_that_is_spoken_is_masked(database: Database) -> None:
    key = "sk-" + "a1B2" * 12
    backend = TranscribingFakeBackend(f"my key is {key}", ["Hm."])
    await Setup(database, backend=backend, download=download).say(spoken())
    assert key not in backend.prompts[0].messages[-1].content


@pytest.mark.parametrize(
    "backend", [TranscribingFakeBackend(""), FakeBackend()], ids=["away", "deaf"]
)
async def test_voice_message_that_nobody_hears_gets_a_clear_word(
    database: Database, backend: FakeBackend
) -> None:
    setup = Setup(database, backend=backend, download=download)
    await setup.say(spoken())
    assert (setup.texts, backend.prompts) == ([DEAF], [])


async def test_what_people_say_to_each_other_is_sent_to_nobody(database: Database) -> None:
    backend = TranscribingFakeBackend("a secret")
    await Setup(database, backend=backend, download=download).say(spoken(wake=None))
    assert backend.heard == []
