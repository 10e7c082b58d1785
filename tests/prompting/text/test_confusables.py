"""Hidden characters are removed from texts, and lookalike names are recognized."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.confusables import confusable_skeleton, strip_hidden_text

PLAIN_RULE = re.compile(
    "[\U000e0000-\U000e007f]"
    "|(?<=[\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
    "|[\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufeff]{4,}"
)
HIDING = st.text("ab é\ufe0f\ufe00\u200b\u200d\u2060\ufeff\U000e0041\U000e0100")


@given(st.text() | HIDING | st.text(st.characters(max_codepoint=127)))
def test_optimized_function_equals_the_plain_regular_expression(text: str) -> None:
    visible = PLAIN_RULE.sub("", text)
    assert strip_hidden_text(text) == visible


def test_text_without_hidden_characters_is_returned_unchanged() -> None:
    for text in ("hello", "héllo " * 20):
        assert strip_hidden_text(text) is text


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("Nora", "Nοrɑ Nօra ոora Ŋora Noꭇa N๐ra Ｎｏｒａ 𝕹𝖔𝖗𝖆 Nøra ɴᴏʀᴀ"),
        ("google", "ɡoogle gօօgle ցoogle goo𝓰le goog1e gⲟⲟgle"),
        ("Bob", "Вов Ьob ɓoƀ Bൠb Ƅob ᗷob".replace("ൠ", "ഠ")),
        ("system", "ѕуѕtеm ʂystem ꜱyꜱtem systeɱ syƨtem".replace("ƨ", "ƽ")),
        ("user", "սser uʂer υser usеr uꜱeꭇ"),
    ],
)
def test_lookalike_names_have_the_same_skeleton(name: str, others: str) -> None:
    assert [
        other for other in others.split() if confusable_skeleton(other) != confusable_skeleton(name)
    ] == []


@pytest.mark.parametrize("name", ["Дмитрий", "Գագիկ", "Σοφία", "สมชาย", "Søren", "ראובן", "Łukasz"])
def test_names_in_other_scripts_are_not_confusable_with_common_names(name: str) -> None:
    assert confusable_skeleton(name)
    assert confusable_skeleton(name) not in {
        confusable_skeleton(other) for other in ("Nora", "Bob", "system", "user")
    }
