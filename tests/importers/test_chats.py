"""Chats are imported from SillyTavern and Character.AI, and exported for SillyTavern."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import UserError
from bot.importers.chats import ChatLine, ExportedChat, encode_chat, read_chat
from bot.prompting.speakers import clean_name

NAMES = st.sampled_from(["Mira", "Byron", "诺拉", "O'Brien", "Ünal", "João 2"])
TEXTS = st.text(max_size=60).map(lambda text: " ".join(text.split())).filter(bool)
GROUP = """\
{"name":"Mira","is_user":false,"original_avatar":"mira.png","mes":"Hello."}
{"name":"You","is_user":true,"mes":"Hi both.","extra":{"isSmallSys":false}}

{"name":"Rex","is_user":false,"original_avatar":"rex.png","mes":"Grr."}
"""
"""A group chat, which has no header."""
CHUB = """\
{"user_name":"You","character_name":"Mira"}
{"name":"Mira","is_user":false,"mes":{"message":"Hello.","id":7},"swipes":[{"message":"Hi."}]}
"""
FIRST_VERSION = {
    "info": {"character": {"name": "Mira", "title": "of the bridge"}},
    "histories": {
        "histories": [
            {
                "created": "2023-03-02T10:00:00Z",
                "msgs": [{"src": {"is_human": False, "name": "Mira"}, "text": "Again!"}],
            },
            {
                "created": "2023-03-01T10:00:00Z",
                "msgs": [
                    {"src": {"is_human": False, "name": "Mira"}, "text": "Hello."},
                    {"src": {"is_human": True, "name": "[NAME_REDACTED]"}, "text": "Hi."},
                ],
            },
        ]
    },
}
SECOND_VERSION = {
    "turns": [
        {
            "create_time": "2024-05-01T10:00:02.1Z",
            "author": {"author_id": "c", "name": "Mira"},
            "candidates": [
                {"candidate_id": "a", "raw_content": "No."},
                {"candidate_id": "b", "raw_content": "Yes."},
            ],
            "primary_candidate_id": "b",
        },
        {
            "create_time": "2024-05-01T10:00:01.5Z",
            "author": {"author_id": "1", "name": "byron", "is_human": True},
            "candidates": [{"candidate_id": "x", "raw_content": "Will it hold?"}],
            "primary_candidate_id": "x",
        },
        {
            "create_time": "2024-05-01T10:00:00.1Z",
            "author": {"author_id": "c", "name": "Mira"},
            "candidates": [{"candidate_id": "s"}],
            "primary_candidate_id": "s",
        },
    ]
}


def chat_lines(chat: ExportedChat) -> list[str]:
    return [f"{'*' if one.is_person else ''}{one.name}: {one.text}" for one in chat.lines]


@st.composite
def chats(draw: st.DrawFn) -> ExportedChat:
    person, character = draw(NAMES), draw(NAMES)
    lines = [
        ChatLine(draw(NAMES), text, draw(st.booleans()))
        for text in draw(st.lists(TEXTS, min_size=1, max_size=6))
    ]
    return ExportedChat(person, character, tuple(lines))


@given(chats())
def test_exported_chat_can_be_read_back(chat: ExportedChat) -> None:
    assert read_chat(encode_chat(chat).encode()) == chat


def test_exported_chat_can_be_read_by_sillytavern() -> None:
    line = ChatLine("Mira", "Hello.", is_person=False, sent_at_ms=1_720_741_897_000)
    header, row = map(json.loads, encode_chat(ExportedChat("You", "Mira", (line,))).splitlines())
    assert header == {"user_name": "You", "character_name": "Mira", "chat_metadata": {}}
    assert row == {
        "name": "Mira",
        "is_user": False,
        "is_system": False,
        "send_date": 1_720_741_897_000,
        "mes": "Hello.",
        "extra": {},
    }


@pytest.mark.parametrize(
    ("content", "person", "lines"),
    [
        (GROUP, "You", ["Mira: Hello.", "*You: Hi both.", "Rex: Grr."]),
        (CHUB, "You", ["Mira: Hello."]),
        (json.dumps(SECOND_VERSION, indent=1), "byron", ["*byron: Will it hold?", "Mira: Yes."]),
    ],
    ids=["group", "Chub", "Character.AI 2"],
)
def test_chats_in_other_formats_are_read(content: str, person: str, lines: list[str]) -> None:
    chat = read_chat(content.encode())
    assert chat.character == "Mira"
    assert chat.person == person
    assert chat_lines(chat) == lines


def test_histories_in_the_first_character_ai_format_are_joined() -> None:
    chat = read_chat(json.dumps(FIRST_VERSION).encode())
    assert chat_lines(chat) == ["Mira: Hello.", "*NAME_REDACTED: Hi.", "Mira: Again!"]


def test_messages_that_no_participant_wrote_are_dropped() -> None:
    rows = [
        {"name": "Mira", "is_user": False, "mes": "Hello."},
        {"name": "System", "is_user": False, "mes": "It rains.", "extra": {"type": "narrator"}},
        {"name": "Note", "is_user": False, "mes": "later", "extra": {"type": "comment"}},
        {"name": "Mira", "is_user": False, "is_system": True, "mes": "Hidden."},
        {"name": "Mira", "is_user": False, "mes": " "},
    ]
    chat = read_chat("\n".join(map(json.dumps, rows)).encode())
    assert chat_lines(chat) == ["Mira: Hello."]
    assert chat.unusable_message_count == 4


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: (
    st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["mes", "name", "is_user", "histories", "turns", "msgs", "src", "extra"])
        | st.sampled_from(["candidates", "author", "user_name", "entries", "created"]),
        inner,
        max_size=5,
    )
), max_leaves=20))  # fmt: skip
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        chat = read_chat(json.dumps(value).encode())
    except UserError:
        return
    for one in chat.lines:
        assert one.text.strip()
        assert clean_name(one.name) == one.name
