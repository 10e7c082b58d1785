"""Results of a growing sequence are kept, and never differ from newly computed ones."""

from collections.abc import Hashable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.incremental_map import map_incrementally


class Shouting:
    def __init__(self) -> None:
        self._memo: dict[Hashable, Any] = {}
        self.computed: list[str] = []

    def __call__(self, texts: str, key: str = "a", form: str = "!") -> str:
        def shout(text: str) -> str:
            self.computed.append(text)
            return text.upper() + form

        return " ".join(map_incrementally(self._memo, key, form, texts, shout))

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


def test_sequences_are_separate() -> None:
    shout = Shouting()
    for key in ("a", "b"):
        shout("xyz", key)
    assert shout.take() == "xyzxyz"
    assert (shout("xyz", "a"), shout.take()) == ("X! Y! Z!", "")


@given(st.lists(st.text("abc", max_size=6), max_size=8))
def test_any_sequences_give_what_a_new_map_gives(histories: list[str]) -> None:
    shout = Shouting()
    for texts in histories:
        assert shout(texts) == Shouting()(texts)
