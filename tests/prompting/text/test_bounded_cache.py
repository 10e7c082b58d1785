"""A cached value equals a computed one, and the cache keeps within its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.bounded_cache import BoundedCache


def shout(text: str) -> str:
    return text.upper() + "!"


@given(st.lists(st.text("abc", max_size=3)), st.integers(0, 40_000))
def test_cached_value_equals_a_computed_one(texts: list[str], max_bytes: int) -> None:
    cache = BoundedCache(shout, len, max_bytes)
    assert [cache[text] for text in texts] == list(map(shout, texts))


def test_value_is_computed_once() -> None:
    computed = []
    cache = BoundedCache(lambda text: computed.append(text), len, 100_000)
    for text in ("a", "b", "a"):
        cache[text]
    assert computed == ["a", "b"]


def test_oldest_entries_are_dropped_when_it_is_full() -> None:
    cache = BoundedCache(shout, lambda _: 700, 64_000)
    for number in range(100):
        cache[str(number)]
    assert list(cache) == [str(number) for number in range(36, 100)]


def test_large_text_is_not_kept() -> None:
    cache = BoundedCache(shout, len, 64_000)
    assert cache["a" * 1_000] == shout("a" * 1_000)
    assert not cache
