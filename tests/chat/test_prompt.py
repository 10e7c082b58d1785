"""A prompt keeps everything else when it gets its messages."""

from dataclasses import fields, replace

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
