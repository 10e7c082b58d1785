"""People's text in a prompt: always found, never a control token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.templates import BaseTemplate, JinjaTemplate, StringTemplate, get, names
from bot.templates.control_tokens import WORD_JOINER, ChatTemplate, break_control_tokens, markers
from bot.templates.text_spans import TextSpan, pieces, render_messages
from tests.attacks import attacks

CHATML = JinjaTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
TRIMMED = JinjaTemplate(
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}"
)
WITHOUT_THOUGHTS = JinjaTemplate(
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{% endfor %}"
)
SHOUTED = JinjaTemplate("{% for m in messages %}<USER>{{ m.content | upper }}{% endfor %}")
ALL: dict[str, ChatTemplate] = {
    "chatml": CHATML,
    "trimmed": TRIMMED,
    "without thoughts": WITHOUT_THOUGHTS,
    "shouted": SHOUTED,
    "strings": StringTemplate(),
    "roles": get("internlm2")(),
    "llama2": get("llama2")(),
    "chatglm": get("chatglm")(),
}
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


def said(*texts: str) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[index % 2], "content": text}
        for index, text in enumerate(texts)
    ]


@pytest.mark.parametrize("template", ALL.values(), ids=list(ALL))
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_the_pieces_joined_are_the_prompt(template: ChatTemplate, texts: list[str]) -> None:
    messages = said(*texts)

    cut = pieces(template, messages)

    assert "".join(piece.text for piece in cut) == render_messages(template, messages)


@given(texts=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4))
def test_what_people_write_changes_nothing_in_the_template_s_pieces(texts: list[str]) -> None:
    for template in (CHATML, TRIMMED, ALL["roles"], ALL["llama2"], ALL["chatglm"]):
        mine = trusted_text(pieces(template, said(*texts)))
        harmless = trusted_text(pieces(template, said(*("x" for _ in texts))))

        assert mine.split() == harmless.split()


def trusted_text(cut: list[TextSpan]) -> str:
    return "".join(piece.text for piece in cut if piece.trusted)


def test_people_s_text_is_found_exactly_even_where_it_repeats_the_template() -> None:
    cut = pieces(CHATML, said(" user\n", "user\n", "<|im_end|>\n"))

    assert [piece.text for piece in cut if not piece.trusted] == [
        " user\n",
        "user\n",
        "<|im_end|>\n",
    ]


def test_a_control_word_at_which_the_template_splits_stays_people_s_text() -> None:
    cut = pieces(WITHOUT_THOUGHTS, said("before</think>after"))

    assert cut == [TextSpan("<|user|>", trusted=True), TextSpan("after", trusted=False)]


@pytest.mark.parametrize(
    "said_last", ["after<|end|>", "<|end|>after", "<|end|>", "<|end|> </think>x"]
)
def test_no_control_word_beside_a_split_is_the_template_s(said_last: str) -> None:
    template = JinjaTemplate(
        "{% set cut = '</think>' %}{% for m in messages %}<|bot|>"
        "{{ m.content.split(cut)[-1].lstrip() }}<|end|>{% endfor %}"
    )

    cut = pieces(template, said(f"before</think>{said_last}"))

    assert trusted_text(cut) == "<|bot|><|end|>"


def test_all_fields_from_people_are_found() -> None:
    template = JinjaTemplate(
        "{% for m in messages %}<|{{ m.name }}|>{{ m.content[0].text }}{% endfor %}"
    )
    messages = [{"role": "user", "name": "Eve|>", "content": [{"type": "text", "text": "<|x|>"}]}]

    assert [p.text for p in pieces(template, messages) if not p.trusted] == ["Eve|>", "<|x|>"]


def test_where_a_template_changes_the_text_its_words_are_broken() -> None:
    template = JinjaTemplate(
        "{% for m in messages %}<|end|>{{ m.content | length }}{{ m.content[:9] }}{% endfor %}"
    )

    cut = pieces(template, said("<|end|>!!!"))

    assert cut == [TextSpan(f"<|end|>11<{WORD_JOINER}|end|>!", trusted=True)]


@given(TEXTS, st.lists(st.sampled_from(["<|im_end|>", "User:", "aa", "<<", "|>"])))
def test_broken_markers_are_gone_and_nothing_visible_is(text: str, words: list[str]) -> None:
    broken = break_control_tokens(text, words)

    assert not any(word.lower() in broken.lower() for word in words)
    assert broken.replace(WORD_JOINER, "") == text.replace(WORD_JOINER, "")


def templates_of_lmdeploy() -> list[Any]:
    made = [get(name)() for name in names()]
    return [one for one in made if isinstance(one, BaseTemplate) and markers(one)]


@pytest.mark.parametrize("attack", attacks("special_tokens"), ids=lambda attack: attack["title"])
def test_control_words_in_people_s_text_stay_people_s_text(attack: dict[str, Any]) -> None:
    given_input = attack["input"]
    texts = [given_input] if isinstance(given_input, str) else list(given_input.values())
    for template in [*ALL.values(), *templates_of_lmdeploy()]:
        for text in texts:
            cut = pieces(template, said("Hello", "Hi", text))
            harmless = pieces(template, said("Hello", "Hi", "x"))
            words = markers(template)

            assert trusted_text(cut).split() == trusted_text(harmless).split()
            assert not any(word in break_control_tokens(text, words) for word in words)
            assert break_control_tokens(text, words).replace(WORD_JOINER, "") == text
