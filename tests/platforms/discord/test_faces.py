"""Test messages of characters on Discord, which are sent through one webhook per channel."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bot.chat.incoming import Address
from bot.chat.outgoing import (
    Button,
    Face,
    MessageContent,
    MessageSearch,
    MessageThread,
    OutgoingMessage,
)
from bot.errors import OutcomeUnknown, Unreachable
from bot.platforms.discord.channels import to_webhook_name, webhook_fields
from bot.ports import BucketSurface
from tests.platforms.discord.conftest import Stage, closed_at_the_end, platform_for
from tests.rigs.simwire import SimWire

pytestmark = pytest.mark.service
NORA = Face("Nora", "https://example.org/nora.png", is_one_of_several=True)
BRAM = Face("Bram", is_one_of_several=True)


class Faces(Stage):
    """A channel in which characters post messages."""

    def said(self, channel: int | None = None) -> list[tuple[str, str]]:
        shown = self.wire.messages(channel or self.channel.id)
        return [(one["author"]["username"], one["content"]) for one in shown]

    async def say(self, text: str, face: Face | None = NORA, at: Address | None = None) -> str:
        return await self.surface.send(self.message(text, face, at))

    def message(
        self, text: str, face: Face | None = NORA, at: Address | None = None
    ) -> OutgoingMessage:
        return OutgoingMessage(at or self.address, MessageContent(text, face), nonce=text)


@pytest.fixture
async def stage(wire: SimWire) -> AsyncIterator[Faces]:
    async with closed_at_the_end(platform_for(wire)) as platform:
        yield Faces(wire, platform)


async def test_characters_of_a_channel_share_one_webhook(stage: Faces) -> None:
    await stage.say("Good evening.")
    await stage.say("Hello!", BRAM)

    assert stage.said() == [("Nora", "Good evening."), ("Bram", "Hello!")]
    assert len(stage.requests("POST", f"/channels/{stage.channel.id}/webhooks")) == 1
    [first, *_] = [one for one in stage.wire.log if "/webhooks/" in one["path"]]
    assert first["json"]["avatar_url"] == NORA.avatar
    assert first["json"]["allowed_mentions"] == {"parse": [], "replied_user": False}


async def test_each_picture_is_uploaded_once_and_deleted_when_unused(stage: Faces) -> None:
    platform, kept = stage.platform, stage.wire.b.application_emojis
    stage.wire.b.create_application_emoji("of_somebody_else")
    nora, bram = [await platform.host_picture(one) for one in (b"nora", b"bram")]
    assert await platform.host_picture(b"nora") == nora != bram
    [made, _] = stage.requests("POST", "/emojis")
    assert made["json"]["image"] == "data:image/png;base64,bm9yYQ=="
    assert {f"https://cdn.discordapp.com/emojis/{one}.png" for one in kept} >= {nora, bram}
    await platform.delete_unused_pictures([nora])
    assert len(kept) == 3, "a character may be about to have it"
    await platform.delete_unused_pictures([nora])
    assert len(kept) == 2
    assert await platform.host_picture(b"nora") == nora


async def test_pictures_are_not_listed_again_while_nothing_changes(stage: Faces) -> None:
    async def drop(*kept: str) -> int:
        before = len(stage.requests("GET", "/emojis"))
        await stage.platform.delete_unused_pictures(kept)
        return len(stage.requests("GET", "/emojis")) - before

    assert [await drop() for _ in range(3)] == [1, 0, 0]
    nora = await stage.platform.host_picture(b"nora")
    assert [await drop(nora) for _ in range(3)] == [1, 0, 0]
    assert [await drop() for _ in range(4)] == [1, 1, 1, 0]


async def test_webhook_calls_in_a_channel_and_its_threads_share_a_limit(stage: Faces) -> None:
    """The bot's own messages do not use the webhook, so they have a limit per channel."""
    thread = str(stage.wire.b.create_thread(stage.channel.id, "Night", stage.alice.id).id)
    at = Address("discord", thread)
    surface = stage.surface
    assert isinstance(surface, BucketSurface)
    opened = replace(stage.message("x"), thread=MessageThread("1", "Title"))
    edits = [
        await surface.select_edit_bucket(
            address, message, MessageContent("x", NORA), interaction=None
        )
        for address, message in ((at, "5"), (stage.address, "5"), (stage.address, f"{thread}/5"))
    ]
    sends = [
        await surface.select_send_bucket(one) for one in (stage.message("x", NORA, at), opened)
    ]
    [spoken] = {*edits, *sends}
    assert spoken.startswith("discord:webhook=")
    answered = replace(stage.message("x"), interaction="1:token")
    own = [stage.message("x", None, at), stage.message("x", None), answered]
    lanes = [at.lane, stage.address.lane, stage.address.lane]
    assert [await surface.select_send_bucket(one) for one in own] == lanes
    stage.set_permissions(manage_webhooks=False, manage_messages=False)
    restarted = platform_for(stage.wire)
    assert isinstance(restarted.surface, BucketSurface)
    assert await restarted.surface.select_send_bucket(stage.message("x")) == stage.address.lane
    await restarted.close()


async def test_webhook_is_found_again_after_a_restart(stage: Faces) -> None:
    await stage.say("Before.")
    restarted = platform_for(stage.wire)
    await restarted.surface.send(stage.message("After."))
    await restarted.close()
    assert stage.said() == [("Nora", "Before."), ("Nora", "After.")]
    assert len(stage.requests("POST", f"/channels/{stage.channel.id}/webhooks")) == 1


async def test_message_with_a_lost_response_is_found_and_not_sent_again(stage: Faces) -> None:
    asked = str(stage.wire.say(stage.alice, stage.channel.id, "Nora?").id)
    earlier = await stage.say("Yes.")
    stage.wire.fault("POST", "/webhooks/*", drop=True, after=True)
    with pytest.raises(OutcomeUnknown):
        await stage.say("Yes.")

    restarted = platform_for(stage.wire)
    found = await restarted.surface.find(stage.message("Yes."), MessageSearch(asked, {earlier}))
    await restarted.close()

    assert found is not None
    assert stage.said()[1:] == [("Nora", "Yes."), ("Nora", "Yes.")]
    assert await stage.surface.find(stage.message("No."), MessageSearch(asked, set())) is None


@pytest.mark.parametrize("is_in_thread", [False, True])
async def test_message_of_a_character_can_be_edited(stage: Faces, *, is_in_thread: bool) -> None:
    channel, at = stage.channel.id, stage.address
    if is_in_thread:
        channel = stage.wire.b.create_thread(channel, "Night", stage.alice.id).id
        at = Address("discord", str(channel))
    sent = await stage.say("Goo", at=at)
    buttons = (Button("Stop", "stop"),)
    await stage.surface.edit(at, sent, MessageContent("Good.", NORA, buttons), interaction=None)
    assert stage.said(channel) == [("Nora", "Good.")]
    [message] = stage.wire.messages(channel)
    assert [one["custom_id"] for one in stage.wire.buttons(message)] == ["stop"]
    assert await stage.surface.find(stage.message("Good.", at=at), MessageSearch(None, set()))

    await stage.surface.edit(at, sent, MessageContent("Without a face."), interaction=None)
    assert stage.said(channel) == [("Nora", "Without a face.")]
    for _ in range(2):
        await stage.surface.delete(at, sent)
    assert stage.said(channel) == []


async def test_bot_posts_in_its_own_name_without_permission_to_manage_webhooks(
    stage: Faces,
) -> None:
    stage.set_permissions(manage_webhooks=False, manage_messages=False)
    bot = stage.wire.b.bot_user.name
    sent = await stage.say("Good")
    await stage.surface.edit(stage.address, sent, MessageContent("Good.", NORA), interaction=None)
    assert stage.said() == [(bot, "**Nora**\nGood.")]
    assert await stage.surface.find(stage.message("Good."), MessageSearch(None, set())) == sent
    await stage.surface.delete(stage.address, sent)
    assert stage.said() == []
    chat = stage.wire.b.get_dm_channel(stage.alice.id).id  # where nobody may
    await stage.say("Hello.", Face("Nora"), Address("discord", str(chat)))
    assert stage.said(chat) == [(bot, "Hello.")]


async def test_deleted_webhook_is_created_again(stage: Faces) -> None:
    await stage.say("One.")
    stage.wire.b.webhooks.clear()
    stage.wire.b.webhook_tokens.clear()
    with pytest.raises(Unreachable):  # the outbox tries again
        await stage.say("Two.")
    await stage.say("Two.")
    assert [text for _, text in stage.said()] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("Nora", "Nora"),
        ("  诺拉  🎭 ", "诺拉 🎭"),
        ("Discord Dan", "Dis-cord Dan"),
        ("CLYDE", "CLY-DE"),
        ("everyone", "everyone."),
        ("", "Troupe"),
        ("n" * 200, "n" * 80),
    ],
)
def test_character_names_comply_with_the_rules_of_discord(name: str, allowed: str) -> None:
    assert to_webhook_name(name) == allowed


@pytest.mark.parametrize(
    "avatar",
    [
        *("http://[", "http://a b/", "javascript:alert(1)", "file:///etc/passwd", ""),
        f"http://a/{'x' * 2048}",
    ],
)
def test_avatar_that_is_not_a_url_is_left_out(avatar: str) -> None:
    assert webhook_fields(Face("Nora", avatar)) == {"username": "Nora"}
