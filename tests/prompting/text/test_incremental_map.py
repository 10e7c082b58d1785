"""Results of a growing sequence are kept, and never differ from newly computed ones."""

from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.incremental_map import IncrementalMap


class Shouting:
    def __init__(self, max_items: int = 100) -> None:
        self._map: IncrementalMap[str, str] = IncrementalMap(max_items)
        self.computed: list[str] = []

    def __call__(self, texts: str, key: str = "a", form: str = "!") -> str:
        def shout(text: str) -> str:
            self.computed.append(text)
            return text.upper() + form

        return " ".join(self._map.map(key, form, texts, shout))

    def take(self) -> str:
        computed, self.computed = self.computed, []
        return "".join(computed)


def test_only_new_items_are_computed() -> None:
    shout = Shouting()
    assert (shout("abc"), shout.take()) == ("A! B! C!", "abc")
    assert (shout("abcd"), shout.take()) == ("A! B! C! D!", "d")
    assert (shout("cdef"), shout.take()) == ("C! D! E! F!", "ef")
    assert (shout("cd"), shout.take()) == ("C! D!", "")


def test_items_after_the_first_difference_are_computed() -> None:
    shout = Shouting()
    shout("abcd")
    shout.take()
    assert (shout("abxd"), shout.take()) == ("A! B! X! D!", "xd")
    assert (shout("ghi"), shout.take()) == ("G! H! I!", "ghi")


def test_other_form_computes_all_items() -> None:
    shout = Shouting()
    shout("ab")
    shout.take()
    assert (shout("ab", form="?"), shout.take()) == ("A? B?", "ab")


def test_sequences_are_separate_and_those_used_longest_ago_are_dropped() -> None:
    shout = Shouting(max_items=6)
    for key in ("a", "b", "a", "c"):
        shout("xyz", key)
    shout.take()
    assert (shout("xyz", "a"), shout.take()) == ("X! Y! Z!", "")
    assert (shout("xyz", "b"), shout.take()) == ("X! Y! Z!", "xyz")


@given(st.lists(st.text("abc", max_size=6), max_size=8))
def test_any_sequences_give_what_a_new_map_gives(histories: list[str]) -> None:
    shout = Shouting(max_items=12)
    for texts in histories:
        assert shout(texts) == Shouting()(texts)
