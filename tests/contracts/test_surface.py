"""Contract of surfaces for messages with files."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import StringIO

import pytest
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, MessageContent, MessageSearch, OutgoingMessage
from bot.errors import OutcomeUnknown
from bot.platforms.terminal.platform import TerminalSurface
from bot.ports import Surface
from tests.fakes import CHAT, FakeSurface
from tests.platforms.discord.conftest import platform_for
from tests.platforms.telegram.conftest import Rig
from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import TgWire

TEXT = "The exact prompt of receipt 17."
FILE = Attachment("prompt-17.txt", '<|im_start|>user\nDu willst "Tee"? 你好 🎭<|im_end|>\n')
ALICE, FORUM, TOPIC = 5, -200, 9


class ChannelRig(ABC):
    """A channel on a platform and the messages that it shows."""

    surface: Surface
    address: Address

    @abstractmethod
    def messages(self) -> list[tuple[str, list[Attachment]]]:
        """Return the bot's messages, each with its files."""

    @abstractmethod
    def lose_next_response(self) -> None:
        """Let the next request arrive, but lose its response."""

    async def send(
        self, text: str = TEXT, file: Attachment | None = FILE, nonce: str = "n1"
    ) -> str:
        return await self.surface.send(
            OutgoingMessage(self.address, MessageContent(text), nonce=nonce, file=file)
        )

    async def find(self, known: Sequence[str] = (), file: Attachment | None = FILE) -> str | None:
        message = OutgoingMessage(self.address, MessageContent(TEXT), file=file, nonce="n")
        return await self.surface.find(message, MessageSearch(None, set(known)))


class DiscordRig(ChannelRig):
    def __init__(self, wire: SimWire) -> None:
        self._wire = wire
        self.platform = platform_for(wire)
        self.surface = self.platform.surface
        self._channel = wire.guild("Guild").create_text_channel("general").id
        self.address = Address("discord", str(self._channel))

    @override
    def messages(self) -> list[tuple[str, list[Attachment]]]:
        return [
            (message["content"], [self._file(one) for one in message["attachments"]])
            for message in self._wire.messages(self._channel)
        ]

    def _file(self, one: dict[str, str]) -> Attachment:
        return Attachment(one["filename"], self._wire.b.cdn.get(one["url"]).decode())

    @override
    def lose_next_response(self) -> None:
        self._wire.fault("POST", "/channels/*/messages", drop=True, after=True)


class TelegramRig(ChannelRig):
    def __init__(self, wire: TgWire, address: Address) -> None:
        self._wire = wire
        self.platform = Rig(wire).bot()
        self.surface = self.platform.surface
        self.address = address

    @override
    def messages(self) -> list[tuple[str, list[Attachment]]]:
        return [
            (message.get("text") or message["caption"], self._files(message))
            for message in self._wire.msgs[int(self.address.chat)].values()
            if message["from"]["is_bot"]
            and str(message.get("message_thread_id", "")) in self._topics
        ]

    @property
    def _topics(self) -> tuple[str]:
        return (self.address.thread or "",)

    def _files(self, message: dict[str, dict[str, str]]) -> list[Attachment]:
        if "document" not in message:
            return []
        document = message["document"]
        return [
            Attachment(document["file_name"], self._wire.files[document["file_id"]][1].decode())
        ]

    @override
    def lose_next_response(self) -> None:
        self._wire.fault("*", drop=True, after=True)


class FakeRig(ChannelRig):
    def __init__(self) -> None:
        self.surface: FakeSurface = FakeSurface()
        self.address = CHAT

    @override
    def messages(self) -> list[tuple[str, list[Attachment]]]:
        files = self.surface.files
        return [
            (text, [files[number]] if number in files else [])
            for number, text in self.surface.messages.items()
        ]

    @override
    def lose_next_response(self) -> None:
        self.surface.responses_to_lose = 1


@asynccontextmanager
async def open_rig(platform: str) -> AsyncIterator[ChannelRig]:
    match platform:
        case "discord":
            async with SimWire(port=0) as discord:
                channel = DiscordRig(discord)
                yield channel
                await channel.platform.close()
        case "private" | "topic":
            telegram = await TgWire().start()
            telegram.say(ALICE, "hi")
            telegram.say(ALICE, "hi", chat=FORUM, thread=TOPIC)
            telegram.topics[FORUM] = {TOPIC: "T"}
            private = platform == "private"
            chat = TelegramRig(
                telegram,
                Address("telegram", str(ALICE))
                if private
                else Address("telegram", str(FORUM), str(TOPIC)),
            )
            yield chat
            await chat.platform.close()
            await telegram.stop()
        case _:
            yield FakeRig()


@pytest.fixture(
    params=[
        "fake",
        *(
            pytest.param(name, marks=pytest.mark.service)
            for name in ("discord", "private", "topic")
        ),
    ]
)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[ChannelRig]:
    async with open_rig(request.param) as opened:
        yield opened


async def test_file_arrives_with_its_text(rig: ChannelRig) -> None:
    await rig.send()
    assert rig.messages() == [(TEXT, [FILE])]


async def test_file_with_a_lost_response_is_found(rig: ChannelRig) -> None:
    earlier = await rig.send()
    rig.lose_next_response()
    with pytest.raises(OutcomeUnknown):
        await rig.send(nonce="n2")

    found = await rig.find(known=[earlier])

    assert found not in {None, earlier}
    assert rig.messages() == [(TEXT, [FILE])] * 2


async def test_file_that_never_arrived_is_not_found(rig: ChannelRig) -> None:
    earlier = await rig.send()
    assert await rig.find(known=[earlier]) is None


async def test_text_is_not_mistaken_for_a_file_with_the_same_text(rig: ChannelRig) -> None:
    text = await rig.send(file=None)
    assert await rig.find() is None
    assert await rig.find(file=None) == text


async def test_file_is_not_mistaken_for_a_message_with_the_same_text(rig: ChannelRig) -> None:
    sent = await rig.send()
    assert await rig.find(file=None) is None
    assert await rig.find() == sent


async def test_terminal_prints_a_file_once_after_its_text() -> None:
    screen = StringIO()
    surface = TerminalSurface(screen, "run")
    for _ in range(2):
        await surface.send(
            OutgoingMessage(
                Address("terminal", "local"),
                MessageContent("Here."),
                nonce="n1",
                file=Attachment("prompt-17.txt", "You are Nora.\x1b[2J\n"),
            )
        )
    assert screen.getvalue() == (
        "Here.\n--- prompt-17.txt ---\nYou are Nora.[2J\n--- end of prompt-17.txt ---"
    )
