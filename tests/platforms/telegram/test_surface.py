"""Test sending to Telegram: requests, errors, and the search for lost messages."""

import re
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
from aiogram.types import MessageEntity
from inline_snapshot import snapshot
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, Button, MessageContent, MessageSearch, OutgoingMessage
from bot.errors import (
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
)
from bot.platforms.telegram.api import BotApi, NotEditable
from bot.platforms.telegram.limits import plain_text
from bot.platforms.telegram.surface import TelegramSurface
from bot.ports import Surface
from bot.replying.split import split
from tests.attacks import attack_texts, with_ours
from tests.platforms.telegram.conftest import Rig
from tests.support.surfaces import find

pytestmark = pytest.mark.service

ALICE, BOB, GROUP, FORUM = 5, 6, -100, -200
FILE = Attachment("prompt-1.txt", "You are Nora.")
PRIVATE_CHAT = Address("telegram", str(ALICE))
GROUP_CHAT = Address("telegram", str(GROUP))


@pytest.fixture
async def surface(rig: Rig) -> AsyncIterator[Surface]:
    bot = rig.bot()
    rig.telegram.say(ALICE, "question")
    rig.telegram.say(ALICE, "question", chat=GROUP)
    yield bot.surface
    await bot.close()


async def send(
    surface: Surface, text: str, at: Address = PRIVATE_CHAT, to: str | None = None
) -> str:
    return await surface.send(OutgoingMessage(at, MessageContent(text), nonce="n", reply_to=to))


@pytest.mark.parametrize(
    ("title", "given"),
    with_ours(
        "discord_mentions",
        {
            "Markdown": "[x](tg://user?id=1) @admin",
            "names in a row": "@alice_2@bob_3 /start@alice_2",
            "in the name of who speaks": "**@alice_2**\nhello",
        },
    ),
)
async def test_mentions_are_formatted_as_code(
    rig: Rig, surface: Surface, title: str, given: Any
) -> None:
    text = given if isinstance(given, str) else f"No preset {given['name']!r}."
    sent = await send(surface, text, GROUP_CHAT, to="1")
    await surface.edit(GROUP_CHAT, sent, MessageContent(f"{text}!"), interaction=None)

    for call in [*rig.calls("sendMessage"), *rig.calls("editMessageText")]:
        text_sent, entities = str(call["text"]), call.get("entities", [])
        assert isinstance(entities, list)
        marks = [MessageEntity.model_validate(one) for one in entities]
        assert {mark.type for mark in marks} <= {"bold", "code", "text_link"}
        assert all(mark.url is None or mark.url.startswith("https://") for mark in marks)
        coded = {mark.extract_from(text_sent) for mark in marks if mark.type == "code"}
        assert coded >= set(re.findall(r"(?<!\w)@[a-z0-9_]{3,}", text_sent))
        assert "parse_mode" not in call
        assert call["link_preview_options"] == {"is_disabled": True}


async def test_hostile_markup_is_sent_as_readable_text(rig: Rig, surface: Surface) -> None:
    """Check that Telegram accepts each text, split as for an answer, without changes."""
    for text in attack_texts("markup"):
        parts = split(text, surface.limits(PRIVATE_CHAT))
        for part in parts:
            await send(surface, part)
        calls = rig.calls("sendMessage")[-len(parts) :] if parts else []
        for call, part in zip(calls, parts, strict=True):
            shown, entities = str(call["text"]), call.get("entities", [])
            assert isinstance(entities, list)
            assert "parse_mode" not in call
            assert len(shown.encode("utf-16-le")) // 2 <= 4096
            assert shown == plain_text(part)
            assert not {one["type"] for one in entities} & {"text_mention", "mention", "url"}
            assert all(one["offset"] + one["length"] <= 4096 for one in entities)


@pytest.mark.parametrize("file", [None, FILE])
async def test_buttons_are_arranged_in_rows(
    rig: Rig, surface: Surface, file: Attachment | None
) -> None:
    content = MessageContent("hi", buttons=(Button("Stop", "stop"), Button("2/3", "next", row=1)))
    message = OutgoingMessage(PRIVATE_CHAT, content, nonce="n", file=file)
    sent = await surface.send(message)

    shown = rig.telegram.msgs[ALICE][int(sent)]
    assert shown["reply_markup"]["inline_keyboard"] == [
        [{"text": "Stop", "callback_data": "stop"}],
        [{"text": "2/3", "callback_data": "next"}],
    ]
    assert await surface.find(message, MessageSearch(None, set())) == sent
    if file is None:
        await surface.edit(PRIVATE_CHAT, sent, MessageContent("hi"), interaction=None)
        assert "reply_markup" not in rig.telegram.msgs[ALICE][int(sent)]


async def test_message_is_sent_as_a_reply_without_link_preview(rig: Rig, surface: Surface) -> None:
    sent = await send(surface, "<b>5 < 6</b> ask @alice", GROUP_CHAT, to="1")

    assert rig.telegram.texts(GROUP) == ["<b>5 < 6</b> ask @alice"]
    assert rig.telegram.msgs[GROUP][int(sent)]["reply_to_message"]["message_id"] == 1
    (call,) = rig.calls("sendMessage")
    assert call == {
        "chat_id": GROUP,
        "text": "<b>5 < 6</b> ask @alice",
        "entities": [{"type": "code", "offset": 17, "length": 6}],
        "link_preview_options": {"is_disabled": True},
        "reply_parameters": {"message_id": 1, "allow_sending_without_reply": True},
    }


async def test_reply_to_a_deleted_message_is_sent(rig: Rig, surface: Surface) -> None:
    del rig.telegram.msgs[GROUP][1]
    await send(surface, "hi", GROUP_CHAT, to="1")
    gone = "Bad Request: message to be replied not found"
    rig.telegram.fault("sendMessage", error_code=400, description=gone)
    await send(surface, "hi again", GROUP_CHAT, to="1")
    assert rig.telegram.texts(GROUP) == ["hi", "hi again"]


async def test_message_is_sent_to_its_topic(rig: Rig, surface: Surface) -> None:
    rig.telegram.say(ALICE, "hi", chat=FORUM, thread=9)
    rig.telegram.topics[FORUM] = {9: "T"}
    topic = Address("telegram", str(FORUM), "9")

    sent = await send(surface, "hi", topic)
    await surface.typing(topic)

    assert rig.telegram.msgs[FORUM][int(sent)]["message_thread_id"] == 9
    assert rig.calls("sendChatAction") == [
        {"chat_id": FORUM, "message_thread_id": 9, "action": "typing"}
    ]


async def test_file_is_sent_with_a_caption_as_a_reply(rig: Rig, surface: Surface) -> None:
    content = MessageContent("for @alice")
    sent = await surface.send(
        OutgoingMessage(GROUP_CHAT, content, nonce="n", reply_to="1", file=FILE)
    )

    (call,) = rig.calls("sendDocument")
    assert str(call.pop("document")).startswith("attach://")
    assert call == snapshot(
        {
            "chat_id": "-100",
            "caption": "for @alice",
            "caption_entities": '[{"type": "code", "offset": 4, "length": 6}]',
            "reply_parameters": '{"message_id": 1, "allow_sending_without_reply": true}',
        }
    )
    assert rig.telegram.msgs[GROUP][int(sent)]["document"]["file_name"] == "prompt-1.txt"
    assert rig.telegram.lint == []


async def test_repeated_edits_and_deletions_succeed(rig: Rig, surface: Surface) -> None:
    sent = await send(surface, "…")
    for _ in range(2):
        await surface.edit(PRIVATE_CHAT, sent, MessageContent("done, @alice"), interaction=None)
    assert rig.telegram.texts(ALICE) == ["done, @alice"]

    for _ in range(2):
        await surface.delete(PRIVATE_CHAT, sent)
    assert rig.telegram.texts(ALICE) == []
    with pytest.raises(MessageNotFound):
        await surface.edit(PRIVATE_CHAT, sent, MessageContent("text"), interaction=None)


async def test_messages_follow_a_group_that_became_a_supergroup(rig: Rig, surface: Surface) -> None:
    asked = rig.telegram.say(BOB, "question", chat=-1000)
    before = await send(surface, "before", GROUP_CHAT)
    rig.telegram.fault("sendMessage", migrate_to=-1000)
    sent = await send(surface, "hi", GROUP_CHAT, to=before)  # to a message that stayed behind
    assert "reply_to_message" not in rig.telegram.msgs[-1000][asked["message_id"] + 1]

    await surface.edit(GROUP_CHAT, sent, MessageContent("hi!"), interaction=None)
    later = await send(surface, "later", GROUP_CHAT, to=sent)
    assert rig.telegram.texts(-1000) == ["hi!", "later"]
    assert await find(surface, GROUP_CHAT, "later", after=sent, known={before}) == later
    await surface.delete(GROUP_CHAT, before)
    with pytest.raises(MessageNotFound):
        await surface.edit(GROUP_CHAT, before, MessageContent("never"), interaction=None)
    assert rig.telegram.texts(GROUP) == ["before"]


@pytest.mark.parametrize(
    ("fault", "meaning"),
    [
        ({"retry_after": 7}, RateLimited),
        ({"error_code": 403}, Refused),
        ({"error_code": 400, "description": "Bad Request: TOPIC_CLOSED"}, Refused),
        ({"error_code": 502}, OutcomeUnknown),
        ({"raw": "<html>502</html>"}, OutcomeUnknown),
        ({"drop": True}, OutcomeUnknown),
    ],
    ids=["429", "403", "400", "502 json", "502 html", "cut"],
)
async def test_send_errors_become_our_errors(
    rig: Rig, surface: Surface, fault: dict[str, object], meaning: type[PlatformError]
) -> None:
    rig.telegram.fault("sendMessage", **fault)

    with pytest.raises(meaning) as caught:
        await send(surface, "hi")

    assert rig.telegram.token not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("settings", "meaning"),
    [
        ({"api_base": "http://127.0.0.1:9"}, Unreachable),
        ({"api_base": "nowhere"}, Unreachable),
        ({"token": "987654321:AAH-canary"}, PlatformFatal),
    ],
    ids=["nobody there", "no address", "wrong token"],
)
async def test_wrong_settings_are_reported_without_the_token(
    rig: Rig, settings: dict[str, object], meaning: type[PlatformError]
) -> None:
    bot = rig.bot(**{"token": "123456789:AAH-canary", **settings})

    with pytest.raises(meaning) as caught:
        await send(bot.surface, "hi")
    await bot.close()

    assert "canary" not in "".join(traceback.format_exception(caught.value))


async def test_refused_link_does_not_affect_other_formatting(rig: Rig, surface: Surface) -> None:
    text = "**bold** [here](http://localhost/a) and *there*"
    rig.telegram.fault("sendMessage", error_code=400, description="Bad Request: Wrong HTTP URL")
    await send(surface, text)
    [refused, sent] = rig.calls("sendMessage")
    assert [one["type"] for one in refused["entities"]] == ["bold", "text_link", "italic"]
    assert [one["type"] for one in sent["entities"]] == ["bold", "italic"]
    assert sent["text"] == "bold here (http://localhost/a) and there"


@pytest.mark.parametrize("at", [PRIVATE_CHAT, GROUP_CHAT], ids=["private", "group"])
async def test_sent_message_with_a_lost_response_is_found(
    rig: Rig, surface: Surface, at: Address
) -> None:
    rig.telegram.fault("sendMessage", drop=True, after=True)
    with pytest.raises(OutcomeUnknown):
        await send(surface, "… @alice", at)
    rig.telegram.say(BOB, "me too", chat=int(at.chat))

    assert await find(surface, at, "… @alice", after="1", known=set()) == "2"
    assert len(rig.telegram.texts(int(at.chat))) == 1


async def test_find_skips_known_messages_and_those_of_other_authors(
    rig: Rig, surface: Surface
) -> None:
    first = await send(surface, "…", GROUP_CHAT)
    for _ in range(12):
        rig.telegram.say(BOB, "chatter", chat=GROUP)
    del rig.telegram.msgs[GROUP][7]
    lost = await send(surface, "…", GROUP_CHAT)

    assert await find(surface, GROUP_CHAT, "…", after="1", known={first}) == lost
    assert first not in {str(call["message_id"]) for call in rig.calls("editMessageText")}


@pytest.mark.parametrize(
    ("at", "chatter", "tries"),
    [(PRIVATE_CHAT, 0, 64), (GROUP_CHAT, 0, 8), (GROUP_CHAT, 80, 64)],
    ids=["private", "group", "lively group"],
)
async def test_find_tries_a_limited_number_of_ids(
    rig: Rig, surface: Surface, at: Address, chatter: int, tries: int
) -> None:
    for _ in range(chatter):
        rig.telegram.say(BOB, "chatter", chat=GROUP)
    assert await find(surface, at, "…", after="1", known=set()) is None
    assert len(rig.calls("editMessageText")) == tries


class LivelyGroup(BotApi):
    """A busy group in which Telegram accepts only a limited number of edits in a row."""

    def __init__(self, ours: int, newest: int) -> None:
        self.ours, self.newest, self.edits_left = ours, newest, 0
        self.probed: list[int] = []

    @override
    async def send(self, name: str, fields: Mapping[str, object], seconds: int = 0) -> msgspec.Raw:
        if self.edits_left == 0:
            raise RateLimited(30)
        self.edits_left -= 1
        self.probed.append(int(str(fields["message_id"])))
        if self.probed[-1] > self.newest:
            raise MessageNotFound("message to edit not found")
        if self.probed[-1] != self.ours:
            raise NotEditable("message can't be edited")
        return msgspec.Raw(b"{}")


@pytest.mark.parametrize(
    ("ours", "waits", "last"), [(50, 3, 50), (0, 4, 68)], ids=["arrived", "lost"]
)
async def test_find_continues_after_a_rate_limit(ours: int, waits: int, last: int) -> None:
    group = LivelyGroup(ours, newest=60)
    surface = TelegramSurface(group)
    for _ in range(waits):
        with pytest.raises(RateLimited):
            await find(surface, GROUP_CHAT, "…", after="1", known=set())
        group.edits_left = 19
    found = await find(surface, GROUP_CHAT, "…", after="1", known=set())
    assert found == (str(ours) if ours else None)
    assert group.probed == [*range(2, last + 1)]


async def test_find_starts_at_the_newest_known_message(rig: Rig, surface: Surface) -> None:
    first, lost = await send(surface, "…"), await send(surface, "…")
    assert await find(surface, PRIVATE_CHAT, "…", after=None, known={first}) == lost
    await send(surface, "…", GROUP_CHAT)
    for _ in range(80):
        rig.telegram.say(BOB, "chatter", chat=GROUP)
    known = await send(surface, "…", GROUP_CHAT)
    assert await find(surface, GROUP_CHAT, "…", after="1", known={known}) is None
    lost = await send(surface, "…", GROUP_CHAT)
    assert await find(surface, GROUP_CHAT, "…", after="1", known={known}) == lost


async def test_search_for_a_duplicate_is_limited_to_known_messages(
    rig: Rig, surface: Surface
) -> None:
    await send(surface, "of last month")
    sent = await send(surface, "…")
    message = OutgoingMessage(PRIVATE_CHAT, MessageContent("…"), nonce="n")
    assert await surface.find(message, MessageSearch(None, {sent}, sent)) is None
    assert rig.telegram.texts(ALICE) == ["of last month", "…"]


async def test_find_in_a_forbidden_chat_raises_refused(rig: Rig, surface: Surface) -> None:
    rig.telegram.blocked.add(GROUP)
    with pytest.raises(Refused):
        await find(surface, GROUP_CHAT, "…", after="1", known=set())


async def test_draft_in_a_private_chat_is_not_a_message(rig: Rig) -> None:
    bot = rig.bot(drafts=True)
    surface = bot.surface
    rig.telegram.say(ALICE, "question")
    assert surface.limits(PRIVATE_CHAT).has_drafts
    assert not surface.limits(GROUP_CHAT).has_drafts
    before = set(rig.telegram.msgs[ALICE])
    for text in ("first", "first **words**"):
        await surface.draft(PRIVATE_CHAT, 7, MessageContent(text))
    assert [text for _, text in rig.telegram.drafts[ALICE, 7]] == ["first", "first words"]
    assert set(rig.telegram.msgs[ALICE]) == before
    await bot.close()


async def test_private_chat_has_the_id_of_its_person(rig: Rig, surface: Surface) -> None:
    bot = rig.bot()
    sent = await send(surface, "for you", await bot.find_private_chat(f"telegram:{ALICE}"))
    assert rig.telegram.msgs[ALICE][int(sent)]["text"] == "for you"
    rig.telegram.blocked.add(BOB)
    with pytest.raises(Refused):
        await send(surface, "for you", await bot.find_private_chat(f"telegram:{BOB}"))
    await bot.close()


@pytest.mark.parametrize(
    ("given", "reaction"),
    [
        *[
            ("👍", "👍"),
            ("👍🏽", "👍"),
            ("❤️", "❤"),
            ("❤️\u200d🔥", "❤\u200d🔥"),
            ("🤷🏽\u200d♂️", "🤷\u200d♂"),
        ],
        *[("🦖", ""), ("", ""), ("👍 👎", ""), ("great", ""), ("👍👍", "")],
    ],
)
async def test_only_emojis_that_bots_may_use_become_reactions(
    surface: Surface, given: str, reaction: str
) -> None:
    for chat in (PRIVATE_CHAT, GROUP_CHAT):
        to_reaction = surface.limits(chat).convert_reaction
        assert to_reaction is not None
        assert to_reaction(given) == reaction
