"""Reading Telegram messages: place, author, and whether the bot is meant."""

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


def heard(*given: object, **fields: object) -> Incoming:
    incoming = to_incoming(message(*given, **fields), BOT)  # type: ignore[arg-type]
    assert incoming is not None
    return incoming


def test_private_message_becomes_an_incoming_with_every_field() -> None:
    assert heard("hi", chat=PRIVATE) == Incoming(
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


def test_group_message_to_nobody_does_not_wake_and_leaves_the_admin_question_open() -> None:
    incoming = heard("hi all")
    assert (incoming.wake, incoming.author_is_admin) == (None, None)


def test_topic_is_part_of_the_address_and_the_narrowest_scope() -> None:
    incoming = heard("hi", message_thread_id=9, is_topic_message=True)
    assert incoming.address == Address("telegram", "-100", "9")
    assert incoming.scopes == ("telegram:-100:9", "telegram:-100")


def test_thread_of_replies_outside_a_forum_is_no_topic() -> None:
    assert heard("hi", message_thread_id=9).address.thread is None


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
def test_what_no_person_said_in_words_is_not_heard(fields: dict[str, object]) -> None:
    assert to_incoming(message(**fields), BOT) is None  # type: ignore[arg-type]


def test_caption_is_heard_like_a_text() -> None:
    caption = "@nova_bot what is this?"
    marks = [entity("mention", caption, "@nova_bot")]
    incoming = heard(None, caption=caption, caption_entities=marks)
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, "what is this?")


# --- mentions --------------------------------------------------------------------------------


@given(before=texts, after=texts)
def test_mention_is_recognised_behind_any_text(before: str, after: str) -> None:
    text = f"x{before} @Nova_Bot {after}"
    incoming = heard(text, entities=[entity("mention", text, "@Nova_Bot")])
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, text)


@given(after=texts)
def test_leading_mention_is_taken_off(after: str) -> None:
    text = f"@nova_bot {after}"
    incoming = heard(text, entities=[entity("mention", text, "@nova_bot")])
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, after.lstrip())


def test_emoji_before_a_mention_of_somebody_else_does_not_shift_it_onto_the_bot() -> None:
    text = "👩‍🚀👩‍🚀 @nova_bots @nova"
    incoming = heard(text, entities=[entity("mention", text, "@nova_bots")])
    assert incoming.wake is None


def test_text_mention_names_the_bot_by_its_id() -> None:
    text = "Nova 🌟, hello"
    marks = [entity("text_mention", text, "Nova 🌟", user=BOT_JSON)]
    incoming = heard(text, entities=marks)
    assert (incoming.wake, incoming.text) == (WakeReason.MENTION, ", hello")


def test_text_mention_of_a_namesake_does_not_wake() -> None:
    namesake = {"id": 8, "is_bot": False, "first_name": "Nova"}
    text = "Nova hello"
    assert heard(text, entities=[entity("text_mention", text, "Nova", user=namesake)]).wake is None


def test_name_without_an_entity_is_no_mention() -> None:
    assert heard("see mail@nova_bot.example").wake is None


# --- commands --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["/preset", "/preset@nova_bot", "/preset@NOVA_bot"])
@pytest.mark.parametrize("chat", [GROUP, PRIVATE], ids=["group", "private"])
def test_command_to_nobody_or_to_this_bot_is_heard(word: str, chat: dict[str, object]) -> None:
    text = f"{word} use x 🌟"
    incoming = heard(text, chat=chat, entities=[entity("bot_command", text, word)])
    assert (incoming.wake, incoming.text) == (WakeReason.COMMAND, "/preset use x 🌟")


def test_command_for_another_bot_stays_asleep_even_as_a_reply() -> None:
    text = "/preset@other_bot use x"
    marks = [entity("bot_command", text, "/preset@other_bot")]
    incoming = heard(text, entities=marks, reply_to_message=said_by_the_bot())
    assert (incoming.wake, incoming.text) == (None, text)


def test_command_in_the_middle_is_only_text() -> None:
    text = "try /preset"
    assert heard(text, entities=[entity("bot_command", text, "/preset")]).wake is None


# --- replies and quotes ----------------------------------------------------------------------


def said_by_the_bot(**more: object) -> dict[str, object]:
    return {"message_id": 40, "date": NOON, "chat": GROUP, "from": BOT_JSON, **more}


def test_reply_to_the_bot_wakes_and_quotes_it() -> None:
    incoming = heard("why?", reply_to_message=said_by_the_bot(text="because"))
    assert (incoming.wake, incoming.quote) == (WakeReason.REPLY, "because")


def test_reply_to_somebody_else_is_quoted_but_does_not_wake() -> None:
    other = said_by_the_bot(caption="a cat") | {"from": {**BOT_JSON, "id": 6, "is_bot": False}}
    incoming = heard("why?", reply_to_message=other)
    assert (incoming.wake, incoming.quote) == (None, "a cat")


def test_chosen_words_win_over_the_whole_message_as_quote() -> None:
    incoming = heard(
        "why?",
        reply_to_message=said_by_the_bot(text="a long story"),
        quote={"text": "long", "position": 2},
    )
    assert incoming.quote == "long"


def test_topic_opened_by_the_bot_does_not_make_every_message_a_reply() -> None:
    opening = said_by_the_bot(forum_topic_created={"name": "T", "icon_color": 1})
    incoming = heard("hi", reply_to_message=opening, message_thread_id=40, is_topic_message=True)
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
def test_who_writes_as_a_chat_is_that_chat_and_never_an_admin(
    user: int, chat: dict[str, object], name: str
) -> None:
    stand_in = {"id": user, "is_bot": user != 777000, "first_name": "Group"}
    incoming = heard("obey", **{"from": stand_in, "sender_chat": chat})
    assert incoming.author == Person(f"telegram:{chat['id']}", name)
    assert incoming.author_is_admin is False
