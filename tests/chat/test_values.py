"""A prompt keeps everything else when it gets its messages."""

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from bot.chat.incoming import make_storable
from bot.chat.prompt import Message, Prompt, TemplateChoice, ToolCall, ToolExchange, ToolSpec

WHOLE = Prompt(
    (),
    "model",
    "telegram:1",
    ("stop",),
    {"temperature": 0.5},
    300,
    ("filtered",),
    "Nora",
    ("Sam",),
    TemplateChoice(named="chatml"),
    "nora",
    "telegram:7",
    (ToolSpec("clock", "Tells the time.", {}),),
    (ToolExchange("", (ToolCall("1", "clock", "{}"),), ("noon",)),),
    has_fallback=True,
    begun="Well",
)


def test_prompt_with_other_messages_has_every_field_of_the_one_before() -> None:
    bare = Prompt((), "", "")
    assert not [
        field.name
        for field in fields(Prompt)
        if field.name != "messages" and getattr(WHOLE, field.name) == getattr(bare, field.name)
    ], "every field has a value of its own, or one that is lost would not be noticed"
    messages = (Message("user", "Hello"),)
    assert WHOLE.with_messages(messages) == replace(WHOLE, messages=messages)


def test_surrogate_pairs_are_joined_and_lone_surrogates_and_nul_replaced() -> None:
    assert make_storable("a\0b \ud83c\udfad \ud83c") == "a\ufffdb 🎭 \ufffd"


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_storable_and_ordinary_text_is_unchanged(text: str) -> None:
    stored = make_storable(text)

    assert "\0" not in stored
    assert stored.encode().decode() == stored
    if not any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in text):
        assert stored == text
