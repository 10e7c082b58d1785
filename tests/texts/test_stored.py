"""Stored English texts with values are parsed and translated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.compose import lore as lore
from bot.routing import speakers as speakers
from bot.texts.text import to_translatable, translate

CHINESE = {
    "key 'lamp' in “alice: the lamp: here {x}”": "关键词 'lamp'，见“alice: the lamp: here {x}”",
    "key 'a'; secondary keys: and any": "关键词 'a'，并满足次要关键词（and any）",
    "The lamp: it is always active (constant)": "The lamp：它始终生效",
    "Inn: north: key 'inn' in “bob: inn?”": "Inn：north：关键词 'inn'，见“bob: inn?”",
    "chance: rolled 0.40, needed less than 0.20": "随机：抽到 0.40，不低于 0.20",
    "is on cooldown for 12 s more": "还要冷却 12 秒",
    "over the budget of 64 tokens": "超出 64 个词元的预算",
}


@pytest.mark.parametrize("stored", CHINESE)
def test_stored_text_is_translated_with_its_values(stored: str) -> None:
    text = to_translatable(stored)
    assert text == stored
    assert translate(text, "zh") == CHINESE[stored]


@given(
    st.text() | st.lists(st.sampled_from(["key ", ": ", "{", "}", " in “", "”", "a"])).map("".join)
)
def test_any_text_is_unchanged_in_english(stored: str) -> None:
    assert to_translatable(stored) == stored
    assert translate(to_translatable(stored), "en") == stored
