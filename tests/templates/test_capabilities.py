"""Detecting a template's capabilities, and adapting conversations to them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.prompt import ALL_CAPABILITIES, TemplateCapabilities
from bot.templates import JinjaTemplate, StringTemplate, get
from bot.templates.capabilities import PLACEHOLDER_USER_TEXT, adapt_messages
from bot.templates.control_tokens import render_messages
from tests.templates.published_templates import detect_all_capabilities, published_templates

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
STRICT = TemplateCapabilities(
    accepts_system=False,
    accepts_late_system=False,
    accepts_repeated_roles=False,
    accepts_assistant_first=False,
)
NO_LATE_SYSTEM = replace(ALL_CAPABILITIES, accepts_late_system=False)


def conversation(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def parse_conversation(written: str) -> list[dict[str, Any]]:
    turns = (turn.split(" ", 1) for turn in written.split("; "))
    return conversation(*((role, content) for role, content in turns))


def test_capabilities_are_detected_by_rendering_probes() -> None:
    assert detect_all_capabilities(ANYTHING) == ALL_CAPABILITIES
    assert detect_all_capabilities(StringTemplate()) == ALL_CAPABILITIES
    assert detect_all_capabilities(ALTERNATING) == STRICT
    assert detect_all_capabilities(NO_SYSTEM) == TemplateCapabilities(False, False, True, True)
    assert detect_all_capabilities(get("chatglm")()) == TemplateCapabilities(
        False, False, True, True
    )


def test_template_that_reads_only_content_parts_gets_parts() -> None:
    capabilities = detect_all_capabilities(IN_PARTS)

    prompt = IN_PARTS.render(
        adapt_messages(conversation(("system", "Be brief."), ("user", "Hi")), capabilities)
    )

    assert capabilities == TemplateCapabilities(
        False, False, True, True, accepts_text_content=False
    )
    assert prompt == "<user>Be brief.\n\nHi"


def test_template_that_drops_all_content_is_treated_as_accepting_strings() -> None:
    assert detect_all_capabilities(JinjaTemplate("nothing")).accepts_text_content


@pytest.mark.parametrize(
    ("capabilities", "given", "adapted"),
    [
        (STRICT, "system s; user a; assistant b", "user s\n\na; assistant b"),
        (STRICT, "assistant a; user b", f"user {PLACEHOLDER_USER_TEXT}; assistant a; user b"),
        (STRICT, "system s; assistant a; user b", "user s; assistant a; user b"),
        (NO_LATE_SYSTEM, "system s; user a; system l; user b", "system s; user a; user l\n\nb"),
    ],
)
def test_rejected_messages_are_moved_or_merged(
    capabilities: TemplateCapabilities, given: str, adapted: str
) -> None:
    assert adapt_messages(parse_conversation(given), capabilities) == parse_conversation(adapted)


def test_merged_contents_keep_their_parts() -> None:
    image = {"type": "image", "url": "x"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [image]},
        {"role": "user", "content": "What is it?"},
    ]

    assert adapt_messages(messages, STRICT) == [
        {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}
    ]


def test_tool_calls_are_never_merged() -> None:
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"id": n}]} for n in range(2)]
    messages: list[dict[str, Any]] = [*conversation(("user", "?")), *calls]

    assert adapt_messages(messages, STRICT) == messages


def test_texts_are_trimmed_only_on_request() -> None:
    messages = conversation(("user", "  Hi \n"))

    assert adapt_messages(messages, ALL_CAPABILITIES) == messages
    assert adapt_messages(messages, ALL_CAPABILITIES, trim_inputs=True) == conversation(
        ("user", "Hi")
    )


TURNS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), st.integers(0, 999).map(str)),
    min_size=1,
)


@given(TURNS)
def test_adapted_conversation_is_accepted_without_loss(turns: list[tuple[str, str]]) -> None:
    for template in (ALTERNATING, NO_SYSTEM, get("chatglm")()):
        prompt = render_messages(
            template, adapt_messages(conversation(*turns), detect_all_capabilities(template))
        )

        position = 0
        for _, text in turns:
            found = prompt.find(text, position)
            assert found >= 0, f"{text!r} is lost, or out of order"
            position = found + len(text)


# They cannot render a plain conversation: they need tools, functions or images.
NEEDS_TOOLS_OR_IMAGES = {
    "hermes-2-pro",
    "hermes-3-tool",
    "hfjs/CohereForAI/c4ai-command-r-v01",
    "hfjs/NousResearch/Hermes-2-Pro-Llama-3-8B (JSON Schema)",
    "hfjs/fireworks-ai/firefunction-v1",
    "hfjs/meta-llama/Llama-Guard-3-11B-Vision",
}


def test_published_templates_render_every_message_of_a_group_chat() -> None:
    roles = ("system", "assistant", "user", "user", "assistant", "system", "user")
    group_chat = conversation(*((role, f"{role} {index}") for index, role in enumerate(roles)))

    lost = {
        name: message["content"]
        for name, template in published_templates().items()
        if name not in NEEDS_TOOLS_OR_IMAGES
        for prompt in [
            template.render(adapt_messages(group_chat, detect_all_capabilities(template)))
        ]
        for message in group_chat
        if message["content"] not in prompt
    }

    assert lost == {}
