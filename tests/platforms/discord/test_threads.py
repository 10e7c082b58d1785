"""Test that long answers continue in one thread or, without permission, in the channel."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bot.chat.incoming import Address
from bot.chat.outgoing import Face, MessageContent, MessageSearch, MessageThread, OutgoingMessage
from bot.errors import OutcomeUnknown
from tests.platforms.discord.conftest import Stage, closed_at_the_end, platform_for
from tests.rigs.simwire import SimWire

pytestmark = pytest.mark.service
_SAID = {0, 19}  # types of messages: plain, and replies
NORA = Face("Nora")
FACES = pytest.mark.parametrize("face", [None, NORA], ids=["own voice", "face"])


class LongAnswer(Stage):
    """A channel with the first message of a long answer."""

    async def begin(self, face: Face | None) -> None:
        """Send the first message of an answer."""
        first = OutgoingMessage(self.address, MessageContent("First.", face), nonce="first")
        self.first = await self.surface.send(first)

    def message(self, text: str, face: Face | None) -> OutgoingMessage:
        thread = MessageThread(self.first, "The rest")
        return OutgoingMessage(
            self.address, MessageContent(text, face), nonce=text, reply_to=self.first, thread=thread
        )

    async def send(self, text: str, face: Face | None) -> str:
        return await self.surface.send(self.message(text, face))

    def in_channel(self) -> list[str]:
        shown = self.wire.messages(self.channel.id)
        return [one["content"] for one in shown if one["type"] in _SAID]

    def in_thread(self) -> list[str]:
        return [one["content"] for one in self.wire.messages(int(self.first))]


@pytest.fixture
async def stage(wire: SimWire) -> AsyncIterator[LongAnswer]:
    async with closed_at_the_end(platform_for(wire)) as platform:
        yield LongAnswer(wire, platform)


@FACES
async def test_rest_of_a_long_answer_is_sent_to_a_thread(
    stage: LongAnswer, face: Face | None
) -> None:
    await stage.begin(face)
    await stage.send("Second.", face)
    third = await stage.send("Third.", face)
    assert stage.in_thread() == ["Second.", "Third."]
    assert "Second." not in stage.in_channel()
    opened = [one for one in stage.wire.log if one["path"].endswith("/threads")]
    assert [one["json"] for one in opened] == [{"name": "The rest"}]

    await stage.surface.edit(
        stage.address, third, MessageContent("Changed.", face), interaction=None
    )
    assert stage.in_thread() == ["Second.", "Changed."]
    await stage.surface.delete(stage.address, third)
    await stage.surface.delete(stage.address, third)
    assert stage.in_thread() == ["Second."]


@FACES
async def test_lost_response_opens_no_second_thread(stage: LongAnswer, face: Face | None) -> None:
    await stage.begin(face)
    stage.wire.fault("POST", "/channels/*/threads", drop=True, after=True)
    with pytest.raises(OutcomeUnknown):
        await stage.send("Second.", face)
    restarted = platform_for(stage.wire)
    message = stage.message("Second.", face)
    assert await restarted.surface.find(message, MessageSearch(None, set())) is None
    await restarted.surface.send(message)
    await restarted.close()
    assert stage.in_thread() == ["Second."]


@FACES
async def test_message_with_a_lost_response_is_found_in_the_thread(
    stage: LongAnswer, face: Face | None
) -> None:
    await stage.begin(face)
    earlier = await stage.send("Again.", face)
    message = replace(stage.message("Again.", face), nonce="another")
    stage.wire.fault(
        "POST", "/webhooks/*" if face else "/channels/*/messages", drop=True, after=True
    )
    with pytest.raises(OutcomeUnknown):
        await stage.surface.send(message)
    restarted = platform_for(stage.wire)
    found = await restarted.surface.find(message, MessageSearch(stage.first, {earlier}))
    await restarted.close()
    assert stage.in_thread() == ["Again.", "Again."]
    assert found not in {None, earlier}


@FACES
async def test_lost_message_is_not_found_in_a_missing_thread(
    stage: LongAnswer, face: Face | None
) -> None:
    await stage.begin(face)
    message = stage.message("Second.", face)
    assert await stage.surface.find(message, MessageSearch(stage.first, set())) is None


@pytest.mark.parametrize("right", ["create_public_threads", "send_messages_in_threads"])
async def test_answer_continues_in_the_channel_without_permission_for_threads(
    stage: LongAnswer, right: str
) -> None:
    stage.set_permissions(**{right: False})
    await stage.begin(None)
    sent = await stage.send("Second.", None)
    assert stage.in_channel() == ["First.", "Second."]
    found = await stage.surface.find(stage.message("Second.", None), MessageSearch(None, set()))
    assert found == sent


async def test_long_answer_continues_in_a_direct_message(stage: LongAnswer) -> None:
    chat = stage.wire.b.get_dm_channel(stage.alice.id).id
    stage.address = Address("discord", str(chat))
    await stage.begin(None)
    await stage.send("Second.", None)
    assert [one["content"] for one in stage.wire.messages(chat)] == ["First.", "Second."]
