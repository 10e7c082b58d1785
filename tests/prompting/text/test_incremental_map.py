"""Cached results for a growing sequence always equal newly computed ones."""

from collections.abc import Hashable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.text.incremental_map import map_new_items


class Shouting:
    def __init__(self) -> None:
        self._memo: dict[Hashable, Any] = {}
        self.computed: list[str] = []

    def __call__(self, texts: str, key: str = "a", form: str = "!") -> str:
        def shout(text: str) -> str:
            self.computed.append(text)
            return text.upper() + form

        return " ".join(map_new_items(self._memo, key, form, texts, shout))

    def take(self) -> str:
        computed, self.computed = self.computed, []
        return "".join(computed)


def test_only_new_items_are_computed() -> None:
    shout = Shouting()
    assert (shout("abc"), shout.take()) == ("A! B! C!", "abc")
    assert (shout("abcd"), shout.take()) == ("A! B! C! D!", "d")
    assert (shout("cdef"), shout.take()) == ("C! D! E! F!", "ef")
    assert (shout("cd"), shout.take()) == ("C! D!", "")
    assert (shout("cx"), shout.take()) == ("C! X!", "x")


def test_changed_arguments_recompute_all_items() -> None:
    shout = Shouting()
    assert (shout("ab"), shout("ab", form="?"), shout("ab", "b")) == ("A! B!", "A? B?", "A! B!")
    assert shout.take() == "ababab"


@given(st.lists(st.text("abc", max_size=6), max_size=8))
def test_results_always_equal_those_of_a_new_map(histories: list[str]) -> None:
    shout = Shouting()
    for texts in histories:
        assert shout(texts) == Shouting()(texts)
