"""What every platform promises of a file that goes out with a message."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import StringIO

import pytest
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, OutgoingMessage
from bot.errors import OutcomeUnknown
from bot.platforms.terminal.surface import TerminalSurface
from bot.ports import Surface
from tests.fakes import CHAT, FakeSurface
from tests.platforms.discord.conftest import platform_for
from tests.platforms.telegram.conftest import Rig
from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import TgWire

WORDS = "The exact prompt of receipt 17."
FILE = Attachment("prompt-17.txt", '<|im_start|>user\nDu willst "Tee"? 你好 🎭<|im_end|>\n')
ALICE, FORUM, TOPIC = 5, -200, 9


class Place(ABC):
    """A place on a platform, and what somebody sees there."""

    surface: Surface
    address: Address

    @abstractmethod
    def seen(self) -> list[tuple[str, list[Attachment]]]:
        """Each message of ours, with its files."""

    @abstractmethod
    def lose_the_next_answer(self) -> None:
        """The next message arrives, but nobody is told."""

    async def send(
        self, text: str = WORDS, file: Attachment | None = FILE, nonce: str = "n1"
    ) -> str:
        return await self.surface.send(OutgoingMessage(self.address, text, nonce=nonce, file=file))

    async def find(self, known: Sequence[str] = (), file: Attachment | None = FILE) -> str | None:
        return await self.surface.find(
            OutgoingMessage(self.address, WORDS, file=file, nonce="n"), after=None, known=set(known)
        )


class OnDiscord(Place):
    def __init__(self, wire: SimWire) -> None:
        self._wire = wire
        self.platform = platform_for(wire)
        self.surface = self.platform.surface
        self._channel = wire.guild("Guild").create_text_channel("general").id
        self.address = Address("discord", str(self._channel))

    @override
    def seen(self) -> list[tuple[str, list[Attachment]]]:
        return [
            (said["content"], [self._file(one) for one in said["attachments"]])
            for said in self._wire.messages(self._channel)
        ]

    def _file(self, one: dict[str, str]) -> Attachment:
        return Attachment(one["filename"], self._wire.b.cdn.get(one["url"]).decode())

    @override
    def lose_the_next_answer(self) -> None:
        self._wire.fault("POST", "/channels/*/messages", drop=True, after=True)


class OnTelegram(Place):
    def __init__(self, wire: TgWire, address: Address) -> None:
        self._wire = wire
        self.platform = Rig(wire).bot()
        self.surface = self.platform.surface
        self.address = address

    @override
    def seen(self) -> list[tuple[str, list[Attachment]]]:
        return [
            (said.get("text") or said["caption"], self._files(said))
            for said in self._wire.msgs[int(self.address.chat)].values()
            if said["from"]["is_bot"] and str(said.get("message_thread_id", "")) in self._topics
        ]

    @property
    def _topics(self) -> tuple[str]:
        return (self.address.thread or "",)

    def _files(self, said: dict[str, dict[str, str]]) -> list[Attachment]:
        if "document" not in said:
            return []
        document = said["document"]
        return [
            Attachment(document["file_name"], self._wire.files[document["file_id"]][1].decode())
        ]

    @override
    def lose_the_next_answer(self) -> None:
        self._wire.fault("*", drop=True, after=True)


class InTests(Place):
    def __init__(self) -> None:
        self.surface: FakeSurface = FakeSurface()
        self.address = CHAT

    @override
    def seen(self) -> list[tuple[str, list[Attachment]]]:
        files = self.surface.files
        return [
            (text, [files[number]] if number in files else [])
            for number, text in self.surface.messages.items()
        ]

    @override
    def lose_the_next_answer(self) -> None:
        self.surface.answers_to_lose = 1


@asynccontextmanager
async def place_on(platform: str) -> AsyncIterator[Place]:
    match platform:
        case "discord":
            async with SimWire(port=0) as discord:
                channel = OnDiscord(discord)
                yield channel
                await channel.platform.close()
        case "private" | "topic":
            telegram = TgWire(port=0)
            await telegram.start()
            telegram.base = f"http://127.0.0.1:{telegram.runner.addresses[0][1]}"
            telegram.say(ALICE, "hi")
            telegram.say(ALICE, "hi", chat=FORUM, thread=TOPIC)
            telegram.topics[FORUM] = {TOPIC: "T"}
            private = platform == "private"
            chat = OnTelegram(
                telegram,
                Address("telegram", str(ALICE))
                if private
                else Address("telegram", str(FORUM), str(TOPIC)),
            )
            yield chat
            await chat.platform.close()
            await telegram.stop()
        case _:
            yield InTests()


@pytest.fixture(
    params=[
        "fake",
        *(
            pytest.param(name, marks=pytest.mark.service)
            for name in ("discord", "private", "topic")
        ),
    ]
)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with place_on(request.param) as there:
        yield there


async def test_a_file_arrives_whole_beside_its_text(place: Place) -> None:
    await place.send()
    assert place.seen() == [(WORDS, [FILE])]


async def test_a_file_whose_arrival_nobody_confirmed_is_found_again(place: Place) -> None:
    earlier = await place.send()
    place.lose_the_next_answer()
    with pytest.raises(OutcomeUnknown):
        await place.send(nonce="n2")

    found = await place.find(known=[earlier])

    assert found not in {None, earlier}
    assert place.seen() == [(WORDS, [FILE])] * 2


async def test_a_file_that_never_arrived_is_not_found(place: Place) -> None:
    earlier = await place.send()
    assert await place.find(known=[earlier]) is None


async def test_a_text_is_not_taken_for_a_file_with_the_same_words(place: Place) -> None:
    text = await place.send(file=None)
    assert await place.find() is None
    assert await place.find(file=None) == text


async def test_a_file_is_not_taken_for_a_text_with_the_same_words(place: Place) -> None:
    sent = await place.send()
    assert await place.find(file=None) is None
    assert await place.find() == sent


async def test_a_terminal_prints_a_file_once_after_its_text() -> None:
    screen = StringIO()
    surface = TerminalSurface(screen, "run")
    for _ in range(2):
        await surface.send(
            OutgoingMessage(
                Address("terminal", "local"),
                "Here.",
                nonce="n1",
                file=Attachment("prompt-17.txt", "You are Nora.\x1b[2J\n"),
            )
        )
    assert screen.getvalue() == (
        "Here.\n--- prompt-17.txt ---\nYou are Nora.[2J\n--- end of prompt-17.txt ---"
    )
