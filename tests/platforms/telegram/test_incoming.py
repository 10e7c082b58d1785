"""Conversion of Telegram's messages: address, author and wake reason."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.incoming import Address, Incoming, Person, WakeReason
from bot.platforms.telegram.incoming import to_incoming
from tests.platforms.telegram.messages import (
    BOT,
    BOT_JSON,
    GROUP,
    NOON,
    PRIVATE,
    entity,
    message,
)

# Whatever Telegram can transport: no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def convert(*given: object, **fields: object) -> Incoming:
    incoming = to_incoming(message(*given, **fields), BOT)  # type: ignore[arg-type]
    assert incoming is not None
    return incoming


def test_second_bot_has_keys_of_its_own() -> None:
    topic = message("hi", message_thread_id=9, is_topic_message=True)
    first, second = to_incoming(topic, BOT), to_incoming(topic, BOT, "77")
    assert first is not None
    assert second is not None
    assert second.address == Address("telegram", "-100", "9", "77")
    assert second.scopes == ("telegram@77:-100:9", "telegram@77:-100")
    assert not set(first.scopes) & set(second.scopes)


def test_private_message_fills_every_field() -> None:
    assert convert("hi", chat=PRIVATE) == Incoming(
        address=Address("telegram", "5"),
        external_key="5:42",
        message_id="42",
        author=Person("telegram:5", "Alice Ng"),
        text="hi",
        at=datetime.fromtimestamp(NOON, UTC),
        wake=WakeReason.DM,
        scopes=("telegram:5",),
        author_is_admin=True,
    )


def test_group_message_does_not_wake_and_admin_is_unknown() -> None:
    incoming = convert("hi all")
    assert (incoming.wake, incoming.author_is_admin) == (None, None)


def test_topic_is_part_of_the_address_and_the_narrowest_scope() -> None:
    incoming = convert("hi", message_thread_id=9, is_topic_message=True)
    assert incoming.address == Address("telegram", "-100", "9")
    assert incoming.scopes == ("telegram:-100:9", "telegram:-100")


def test_reply_thread_outside_a_forum_is_not_a_topic() -> None:
    assert convert("hi", message_thread_id=9).address.thread is None


@pytest.mark.parametrize(
    "fields",
    [
        {"text": None, "new_chat_title": "Square table"},
        {"text": None, "photo": []},
        {"text": "beep", "from": BOT_JSON},
        {"text": "post", "from": None},
    ],
    ids=["service", "no words", "another bot", "nobody"],
)
def test_messages_without_text_or_human_author_are_dropped(fields: dict[str, object]) -> None:
    assert to_incoming(message(**fields), BOT) is None  # type: ignore[arg-type]


def test_caption_is_read_like_text() -> None:
    caption = "@nova_bot what is this?"
    marks = [entity("mention", caption, "@nova_bot")]
    incoming = convert(None, caption=caption, caption_entities=marks)
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, "what is this?")


# --- mentions --------------------------------------------------------------------------------


@given(before=texts, after=texts)
def test_mention_wakes_after_any_text(before: str, after: str) -> None:
    text = f"x{before} @Nova_Bot {after}"
    incoming = convert(text, entities=[entity("mention", text, "@Nova_Bot")])
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, text)


@given(after=texts)
def test_leading_mention_is_removed(after: str) -> None:
    text = f"@nova_bot {after}"
    incoming = convert(text, entities=[entity("mention", text, "@nova_bot")])
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, after.lstrip())


def test_mention_offsets_count_utf16_units() -> None:
    text = "👩‍🚀👩‍🚀 @nova_bots @nova"
    incoming = convert(text, entities=[entity("mention", text, "@nova_bots")])
    assert incoming.wake is None


def test_text_mention_of_the_bot_id_wakes() -> None:
    text = "Nova 🌟, hello"
    marks = [entity("text_mention", text, "Nova 🌟", user=BOT_JSON)]
    incoming = convert(text, entities=marks)
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, ", hello")


def test_text_mention_of_another_id_does_not_wake() -> None:
    namesake = {"id": 8, "is_bot": False, "first_name": "Nova"}
    text = "Nova hello"
    assert (
        convert(text, entities=[entity("text_mention", text, "Nova", user=namesake)]).wake is None
    )


def test_username_without_an_entity_does_not_wake() -> None:
    assert convert("see mail@nova_bot.example").wake is None


# --- commands --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["/preset", "/preset@nova_bot", "/preset@NOVA_bot"])
@pytest.mark.parametrize("chat", [GROUP, PRIVATE], ids=["group", "private"])
def test_command_with_or_without_this_bots_name_wakes(word: str, chat: dict[str, object]) -> None:
    text = f"{word} use x 🌟"
    incoming = convert(text, chat=chat, entities=[entity("bot_command", text, word)])
    assert (incoming.wake, incoming.text) == (WakeReason.COMMAND, "/preset use x 🌟")


def test_command_for_another_bot_does_not_wake() -> None:
    text = "/preset@other_bot use x"
    marks = [entity("bot_command", text, "/preset@other_bot")]
    incoming = convert(text, entities=marks, reply_to_message=bot_message())
    assert (incoming.wake, incoming.text) == (None, text)


def test_command_within_the_text_does_not_wake() -> None:
    text = "try /preset"
    assert convert(text, entities=[entity("bot_command", text, "/preset")]).wake is None


# --- replies and quotes ----------------------------------------------------------------------


def bot_message(**more: object) -> dict[str, object]:
    return {"message_id": 40, "date": NOON, "chat": GROUP, "from": BOT_JSON, **more}


def test_reply_to_the_bot_wakes_and_quotes_it() -> None:
    incoming = convert("why?", reply_to_message=bot_message(text="because"))
    assert (incoming.wake, incoming.quote) == (WakeReason.REPLY, "because")


def test_reply_to_somebody_else_is_quoted_but_does_not_wake() -> None:
    other = bot_message(caption="a cat") | {"from": {**BOT_JSON, "id": 6, "is_bot": False}}
    incoming = convert("why?", reply_to_message=other)
    assert (incoming.wake, incoming.quote) == (None, "a cat")


def test_partial_quote_replaces_the_whole_message() -> None:
    incoming = convert(
        "why?",
        reply_to_message=bot_message(text="a long story"),
        quote={"text": "long", "position": 2},
    )
    assert incoming.quote == "long"


def test_message_in_a_topic_opened_by_the_bot_is_not_a_reply() -> None:
    opening = bot_message(forum_topic_created={"name": "T", "icon_color": 1})
    incoming = convert("hi", reply_to_message=opening, message_thread_id=40, is_topic_message=True)
    assert (incoming.wake, incoming.quote) == (None, None)


# --- who it was ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "chat", "name"),
    [
        (1087968824, GROUP, "Round table"),
        (136817688, {"id": -200, "type": "channel", "title": "News"}, "News"),
        (777000, {"id": -300, "type": "channel", "title": "Linked"}, "Linked"),
    ],
    ids=["anonymous admin", "as a channel", "linked channel"],
)
def test_author_writing_as_a_chat_is_that_chat_and_not_admin(
    user: int, chat: dict[str, object], name: str
) -> None:
    stand_in = {"id": user, "is_bot": user != 777000, "first_name": "Group"}
    incoming = convert("obey", **{"from": stand_in, "sender_chat": chat})
    assert incoming.author == Person(f"telegram:{chat['id']}", name)
    assert incoming.author_is_admin is False
