"""Text from people is located in prompts, and never becomes control tokens."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.templates import BaseTemplate, JinjaTemplate, get, names
from bot.templates.control_tokens import (
    WORD_JOINER,
    ChatTemplate,
    TextSpan,
    break_control_tokens,
    find_control_tokens,
    render_messages,
    render_spans,
)
from tests.attacks import attacks
from tests.support.templates import ALL, CHATML, TRIMMED, WITHOUT_REASONING, conversation

TRICKY_TEXTS = [
    "<|im_end|>",
    "<end_of_turn>\n",
    "</think>",
    "User:",
    "[/INST]",
    "\U000f0000",
    "{{ user }}",
]
TEXTS = st.lists(st.one_of(st.sampled_from([*TRICKY_TEXTS, " ", "\n", "hi", "ü"]), st.text())).map(
    "".join
)


@pytest.mark.parametrize("template", ALL.values(), ids=list(ALL))
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_joined_spans_equal_the_prompt(template: ChatTemplate, texts: list[str]) -> None:
    messages = conversation(*texts)

    spans = render_spans(template, messages)

    assert "".join(span.text for span in spans) == render_messages(template, messages)


@given(texts=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4))
def test_text_from_people_does_not_change_the_trusted_spans(texts: list[str]) -> None:
    for template in (CHATML, TRIMMED, ALL["roles"], ALL["llama2"], ALL["chatglm"]):
        mine = trusted_text(render_spans(template, conversation(*texts)))
        harmless = trusted_text(render_spans(template, conversation(*("x" for _ in texts))))

        assert mine.split() == harmless.split()


def trusted_text(spans: list[TextSpan]) -> str:
    return "".join(span.text for span in spans if span.trusted)


def test_text_that_repeats_the_template_is_located_exactly() -> None:
    spans = render_spans(CHATML, conversation(" user\n", "user\n", "<|im_end|>\n"))

    assert [span.text for span in spans if not span.trusted] == [
        " user\n",
        "user\n",
        "<|im_end|>\n",
    ]


def test_text_that_the_template_splits_is_located() -> None:
    spans = render_spans(WITHOUT_REASONING, conversation("before</think>after"))

    assert spans == [TextSpan("<|user|>", trusted=True), TextSpan("after", trusted=False)]


@pytest.mark.parametrize(
    "last_text", ["after<|end|>", "<|end|>after", "<|end|>", "<|end|> </think>x"]
)
def test_control_token_next_to_a_split_is_untrusted(last_text: str) -> None:
    template = JinjaTemplate(
        "{% set separator = '</think>' %}{% for m in messages %}<|bot|>"
        "{{ m.content.split(separator)[-1].lstrip() }}<|end|>{% endfor %}"
    )

    spans = render_spans(template, conversation(f"before</think>{last_text}"))

    assert trusted_text(spans) == "<|bot|><|end|>"


def test_all_untrusted_fields_are_located() -> None:
    template = JinjaTemplate(
        "{% for m in messages %}<|{{ m.name }}|>{{ m.content[0].text }}{% endfor %}"
    )
    messages = [{"role": "user", "name": "Eve|>", "content": [{"type": "text", "text": "<|x|>"}]}]

    assert [p.text for p in render_spans(template, messages) if not p.trusted] == ["Eve|>", "<|x|>"]


def test_control_tokens_are_broken_where_the_text_cannot_be_located() -> None:
    template = JinjaTemplate(
        "{% for m in messages %}<|end|>{{ m.content | length }}{{ m.content[:9] }}{% endfor %}"
    )

    spans = render_spans(template, conversation("<|end|>!!!"))

    assert spans == [TextSpan(f"<|end|>11<{WORD_JOINER}|end|>!", trusted=True)]


@given(TEXTS, st.lists(st.sampled_from(["<|im_end|>", "User:", "aa", "<<", "|>"])))
def test_breaking_control_tokens_keeps_the_visible_text(text: str, words: list[str]) -> None:
    broken = break_control_tokens(text, words)

    assert not any(word.lower() in broken.lower() for word in words)
    assert broken.replace(WORD_JOINER, "") == text.replace(WORD_JOINER, "")


def lmdeploy_templates() -> list[Any]:
    made = [get(name)() for name in names()]
    return [one for one in made if isinstance(one, BaseTemplate) and find_control_tokens(one)]


@pytest.mark.parametrize("attack", attacks("special_tokens"), ids=lambda attack: attack["title"])
def test_control_tokens_in_text_from_people_stay_untrusted(attack: dict[str, Any]) -> None:
    given_input = attack["input"]
    texts = [given_input] if isinstance(given_input, str) else list(given_input.values())
    for template in [*ALL.values(), *lmdeploy_templates()]:
        for text in texts:
            spans = render_spans(template, conversation("Hello", "Hi", text))
            harmless = render_spans(template, conversation("Hello", "Hi", "x"))
            tokens = find_control_tokens(template)

            assert trusted_text(spans).split() == trusted_text(harmless).split()
            assert not any(token in break_control_tokens(text, tokens) for token in tokens)
            assert break_control_tokens(text, tokens).replace(WORD_JOINER, "") == text
