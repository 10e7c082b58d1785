"""Conversations are said in the form that a template accepts, and nothing is lost."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bot.templates import JinjaTemplate, StringTemplate, get
from bot.templates.capabilities import (
    ALL_CAPABILITIES,
    PLACEHOLDER_USER_TEXT,
    Capabilities,
    adapt_messages,
    capabilities,
)
from bot.templates.text_spans import render_messages
from tests.templates.published_templates import published_templates

ALTERNATING = JinjaTemplate(
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
NO_SYSTEM = JinjaTemplate(
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
ANYTHING = JinjaTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
IN_PARTS = JinjaTemplate(
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
STRICT = Capabilities(system=False, late_system=False, repeats=False, assistant_first=False)


def said(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def test_capabilities_are_read_off_the_template_itself() -> None:
    assert capabilities(ANYTHING) == ALL_CAPABILITIES
    assert capabilities(StringTemplate()) == ALL_CAPABILITIES
    assert capabilities(ALTERNATING) == STRICT
    assert capabilities(NO_SYSTEM) == Capabilities(False, False, True, True)
    assert capabilities(get("chatglm")()) == Capabilities(False, False, True, True)


def test_a_template_that_knows_only_parts_gets_parts() -> None:
    able = capabilities(IN_PARTS)

    prompt = IN_PARTS.render(adapt_messages(said(("system", "Be brief."), ("user", "Hi")), able))

    assert able == Capabilities(False, False, True, True, texts=False)
    assert prompt == "<user>Be brief.\n\nHi"


def test_a_template_that_loses_every_content_is_left_to_fail_by_itself() -> None:
    assert capabilities(JinjaTemplate("nothing")).texts


def test_what_a_template_accepts_stays_as_it_is() -> None:
    messages = said(("system", "s"), ("assistant", "greeting"), ("user", "a"), ("user", "b"))

    adapted = adapt_messages(messages, ALL_CAPABILITIES)

    assert all(ours is theirs for ours, theirs in zip(adapted, messages, strict=True))


def test_a_refused_system_text_goes_in_front_of_the_first_user_turn() -> None:
    messages = said(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"))

    assert adapt_messages(messages, STRICT) == said(
        ("user", "Be brief.\n\nHi"), ("assistant", "Hello")
    )


def test_several_people_in_a_row_become_one_turn() -> None:
    messages = said(("user", "Ann: hi"), ("user", "Bob: hello"), ("assistant", "Hey"))

    assert adapt_messages(messages, STRICT) == said(
        ("user", "Ann: hi\nBob: hello"), ("assistant", "Hey")
    )


def test_a_greeting_gets_a_turn_before_it() -> None:
    greeting = said(("assistant", "Welcome!"), ("user", "Hi"))
    with_persona = [*said(("system", "You are Nora.")), *greeting]

    assert adapt_messages(greeting, STRICT) == [*said(("user", PLACEHOLDER_USER_TEXT)), *greeting]
    assert adapt_messages(with_persona, STRICT) == [*said(("user", "You are Nora.")), *greeting]


def test_a_late_system_text_goes_to_the_turn_after_it() -> None:
    able = Capabilities(system=True, late_system=False, repeats=True, assistant_first=True)
    messages = said(("system", "s"), ("user", "a"), ("system", "late"), ("user", "b"))

    assert adapt_messages(messages, able) == said(
        ("system", "s"), ("user", "a"), ("user", "late\n\nb")
    )


def test_contents_in_parts_keep_their_parts() -> None:
    image = {"type": "image", "url": "x"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [image]},
        {"role": "user", "content": "What is it?"},
    ]

    assert adapt_messages(messages, STRICT) == [
        {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}
    ]


def test_calls_of_tools_are_never_merged() -> None:
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"id": n}]} for n in range(2)]
    messages: list[dict[str, Any]] = [*said(("user", "?")), *calls]

    assert adapt_messages(messages, STRICT) == messages


def test_trimming_is_a_switch() -> None:
    messages = said(("user", "  Hi \n"))

    assert adapt_messages(messages, ALL_CAPABILITIES) == messages
    assert adapt_messages(messages, ALL_CAPABILITIES, trim_inputs=True) == said(("user", "Hi"))


TURNS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), st.integers(0, 999).map(str)),
    min_size=1,
)


@given(TURNS)
def test_every_conversation_is_accepted_in_the_end_and_no_text_is_lost(
    turns: list[tuple[str, str]],
) -> None:
    for template in (ALTERNATING, NO_SYSTEM, get("chatglm")()):
        prompt = render_messages(template, adapt_messages(said(*turns), capabilities(template)))

        position = 0
        for _, text in turns:
            position = prompt.index(text, position) + len(text)


# They have no form for a plain conversation: they want tools, functions or pictures.
NEEDS_TOOLS_OR_IMAGES = {
    "hermes-2-pro",
    "hermes-3-tool",
    "hfjs/CohereForAI/c4ai-command-r-v01",
    "hfjs/NousResearch/Hermes-2-Pro-Llama-3-8B (JSON Schema)",
    "hfjs/fireworks-ai/firefunction-v1",
    "hfjs/meta-llama/Llama-Guard-3-11B-Vision",
}


def test_the_templates_in_use_say_all_of_what_a_chat_room_says() -> None:
    roles = ("system", "assistant", "user", "user", "assistant", "system", "user")
    room = said(*((role, f"{role} {index}") for index, role in enumerate(roles)))

    lost = {
        name: message["content"]
        for name, template in published_templates().items()
        if name not in NEEDS_TOOLS_OR_IMAGES
        for prompt in [template.render(adapt_messages(room, capabilities(template)))]
        for message in room
        if message["content"] not in prompt
    }

    assert lost == {}
