"""Contract of surfaces: a message is found again after its response was lost."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, MessageContent, MessageSearch, OutgoingMessage
from bot.contracts import (  # noqa: F401 # pytest runs them
    test_message_can_be_changed_until_it_is_deleted,
    test_message_that_is_sent_again_is_recognized,
)
from bot.errors import OutcomeUnknown
from bot.ports import Surface
from tests.fakes import CHAT, FakeSurface
from tests.platforms.discord.conftest import closed_at_the_end, platform_for
from tests.platforms.telegram.conftest import Rig
from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import TgWire

TEXT = "The exact prompt of receipt 17."
FILE = Attachment("prompt-17.txt", '<|im_start|>user\nDu willst "Tee"? 你好 🎭<|im_end|>\n')
ALICE, FORUM, TOPIC = 5, -200, 9
Shown: TypeAlias = list[tuple[str, list[Attachment]]]


@dataclass
class Channel:
    """A channel of a platform under test."""

    surface: Surface
    address: Address
    messages: Callable[[], Shown]
    """Returns the text and files of each message of the bot."""
    lose_next_response: Callable[[], object]
    """Makes the platform accept the next request, but lose its response."""

    async def send(self, file: Attachment | None = FILE, nonce: str = "n1") -> str:
        content = MessageContent(TEXT)
        return await self.surface.send(OutgoingMessage(self.address, content, nonce, file=file))

    async def find(self, *known: str, file: Attachment | None = FILE) -> str | None:
        message = OutgoingMessage(self.address, MessageContent(TEXT), "n", file=file)
        return await self.surface.find(message, MessageSearch(None, set(known)))


@asynccontextmanager
async def on_discord() -> AsyncIterator[Channel]:
    async with SimWire(port=0) as wire, closed_at_the_end(platform_for(wire)) as platform:
        channel = wire.guild("Guild").create_text_channel("general").id

        def file_of(one: dict[str, str]) -> Attachment:
            return Attachment(one["filename"], wire.b.cdn.get(one["url"]).decode())

        def messages() -> Shown:
            shown = wire.messages(channel)
            return [(one["content"], [*map(file_of, one["attachments"])]) for one in shown]

        def lose() -> None:
            wire.fault("POST", "/channels/*/messages", drop=True, after=True)

        yield Channel(platform.surface, Address("discord", str(channel)), messages, lose)


@asynccontextmanager
async def on_telegram(topic: int | None = None) -> AsyncIterator[Channel]:
    wire, chat = await TgWire().start(), FORUM if topic else ALICE
    wire.say(ALICE, "hi")
    wire.say(ALICE, "hi", chat=FORUM, thread=TOPIC)
    wire.topics[FORUM] = {TOPIC: "T"}

    def files_of(message: dict[str, Any]) -> list[Attachment]:
        documents = [message["document"]] if "document" in message else []
        return [
            Attachment(one["file_name"], wire.files[one["file_id"]][1].decode())
            for one in documents
        ]

    def messages() -> Shown:
        return [
            (one.get("text") or one["caption"], files_of(one))
            for one in wire.msgs[chat].values()
            if one["from"]["is_bot"] and one.get("message_thread_id") == topic
        ]

    bot, address = Rig(wire).bot(), Address("telegram", str(chat), str(topic) if topic else None)
    yield Channel(bot.surface, address, messages, lambda: wire.fault("*", drop=True, after=True))
    await bot.close()
    await wire.stop()


@asynccontextmanager
async def on_the_fake() -> AsyncIterator[Channel]:
    surface = FakeSurface()

    def messages() -> Shown:
        files = {number: [file] for number, file in surface.files.items()}
        return [(text, files.get(number, [])) for number, text in surface.messages.items()]

    yield Channel(surface, CHAT, messages, lambda: setattr(surface, "responses_to_lose", 1))


PLATFORMS: dict[str, Callable[[], AbstractAsyncContextManager[Channel]]] = {
    "discord": on_discord,
    "private": on_telegram,
    "topic": lambda: on_telegram(TOPIC),
}


@pytest.fixture(params=[*(pytest.param(one, marks=pytest.mark.service) for one in PLATFORMS), ""])
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[Channel]:
    async with PLATFORMS.get(request.param, on_the_fake)() as opened:
        yield opened


@pytest.fixture
def surface(channel: Channel) -> Surface:
    return channel.surface


@pytest.fixture
def address(channel: Channel) -> Address:
    return channel.address


async def test_sent_file_is_found_after_a_lost_response(channel: Channel) -> None:
    earlier = await channel.send()
    assert channel.messages() == [(TEXT, [FILE])]
    assert await channel.find(earlier) is None
    channel.lose_next_response()
    with pytest.raises(OutcomeUnknown):
        await channel.send(nonce="n2")
    assert await channel.find(earlier) not in {None, earlier}
    assert channel.messages() == [(TEXT, [FILE])] * 2


@pytest.mark.parametrize(("sent", "other"), [(None, FILE), (FILE, None)])
async def test_file_and_text_are_not_mistaken_for_each_other(
    channel: Channel, sent: Attachment | None, other: Attachment | None
) -> None:
    message = await channel.send(sent)
    assert await channel.find(file=other) is None
    assert await channel.find(file=sent) == message
