"""Which entries wake, rule by rule as SillyTavern has them, and why."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.lorebook.entries import Entry, Logic, Lore, Lorebook, Position, Timed
from bot.prompting.lorebook.search import consult

SAID = ("Bob: hello", "Alice: the red dragon sleeps")


def words(texts: Sequence[str]) -> Sequence[int]:
    return [len(text.split()) for text in texts]


def entry(uid: str, *keys: str, **values: Any) -> Entry:
    return Entry(uid, **{"content": f"about {uid}", "keys": keys, **values})


def lore(
    *entries: Entry,
    said: Sequence[str] = SAID,
    budget: int = 1000,
    dice: Callable[[], float] = lambda: 0.5,
    timed: Timed = Timed(),  # noqa: B008
    **book: Any,
) -> Lore:
    return consult(
        Lorebook(entries, **book), said, budget=budget, count=words, dice=dice, timed=timed
    )


def fired(found: Lore) -> list[str]:
    return [entry.uid for entry in found.entries]


def why(found: Lore) -> dict[str, str]:
    return {verdict.entry.uid: verdict.why for verdict in found.verdicts}


def test_a_key_wakes_its_entry_and_the_receipt_says_which() -> None:
    found = lore(entry("d", "wyvern", "Dragon"), entry("c", "cat"))

    assert fired(found) == ["d"]
    assert why(found) == {"d": "key 'Dragon'", "c": "its keys were not found"}


def test_secondary_keys_decide_by_their_logic() -> None:
    def wakes(logic: Logic, *secondary: str) -> bool:
        return bool(fired(lore(entry("d", "dragon", secondary_keys=secondary, logic=logic))))

    assert wakes(Logic.AND_ANY, "red", "blue")
    assert not wakes(Logic.AND_ANY, "green", "blue")
    assert wakes(Logic.AND_ALL, "red", "sleeps")
    assert not wakes(Logic.AND_ALL, "red", "blue")
    assert wakes(Logic.NOT_ANY, "green", "blue")
    assert not wakes(Logic.NOT_ANY, "red", "blue")
    assert wakes(Logic.NOT_ALL, "red", "blue")
    assert not wakes(Logic.NOT_ALL, "red", "sleeps")


def test_regular_expressions_have_flags_and_need_no_whole_words() -> None:
    assert fired(lore(entry("d", r"/drag.n\ssl/"))) == ["d"]
    assert fired(lore(entry("d", "/DRAGON/"))) == []
    assert fired(lore(entry("d", "/DRAGON/i"))) == ["d"]


def test_a_catastrophic_key_is_skipped_and_noted() -> None:
    found = lore(
        entry("slow", "/(a|a)+$/"), entry("d", "dragon"), said=["x: dragon " + "a" * 40 + "!"]
    )

    assert fired(found) == ["d"]
    assert why(found)["slow"] == "its regular expression took too long and was skipped"


def test_a_thousand_catastrophic_keys_cost_one_time_limit() -> None:
    slow = [entry(str(n), f"/(a|a|{n})+$/") for n in range(1000)]

    assert fired(lore(*slow, said=["a" * 40 + "!"])) == []


def test_case_and_whole_words_are_the_entrys_or_the_books() -> None:
    assert fired(lore(entry("d", "Red"), case_sensitive=True)) == []
    assert fired(lore(entry("d", "Red", case_sensitive=False), case_sensitive=True)) == ["d"]
    assert fired(lore(entry("d", "drag"))) == []
    assert fired(lore(entry("d", "drag", match_whole_words=False))) == ["d"]
    assert fired(lore(entry("d", "red drag"))) == ["d"]  # a phrase is looked for as it is


def test_whole_words_know_scripts_without_blanks() -> None:
    assert fired(lore(entry("z", "龙"), said=["A: 红龙睡了"])) == ["z"]
    assert fired(lore(entry("c", "cat"), said=["A: 我的cat很小"])) == ["c"]
    assert fired(lore(entry("k", "кот"), said=["A: который час"])) == []


def test_a_constant_entry_needs_no_key_and_a_disabled_one_never_fires() -> None:
    found = lore(entry("c", constant=True), entry("d", "dragon", enabled=False), entry("e"))

    assert fired(found) == ["c"]
    assert why(found) == {"c": "it is constant", "d": "it is switched off", "e": "it has no keys"}


def test_the_scan_depth_is_the_entrys_or_the_books() -> None:
    said = ["A: dragon", "B: one", "C: two"]

    assert fired(lore(entry("d", "dragon"), said=said)) == []
    assert fired(lore(entry("d", "dragon", scan_depth=3), said=said)) == ["d"]
    assert fired(lore(entry("d", "dragon"), said=said, scan_depth=3)) == ["d"]
    assert fired(lore(entry("d", "dragon", scan_depth=0), said=said, scan_depth=3)) == []


def test_no_key_matches_across_two_messages() -> None:
    assert fired(lore(entry("x", r"/hello\s*Alice/", r"/sleeps\s+Bob/"))) == []


def test_what_is_inserted_later_stands_nearer_to_the_end() -> None:
    found = lore(
        entry("late", constant=True, order=200),
        entry("early", constant=True, order=1),
        entry("deep", constant=True, order=5, position=Position.AT_DEPTH),
    )

    assert fired(found) == ["early", "deep", "late"]


def test_the_highest_order_finds_room_in_the_budget_first() -> None:
    low, high = entry("low", constant=True, order=1), entry("high", constant=True, order=2)
    free = entry("free", constant=True, order=0, ignores_budget=True)

    found = lore(low, high, free, budget=3)

    assert fired(found) == ["free", "high"]
    assert why(found)["low"] == "no room in the budget of 3 tokens"
    assert fired(lore(low, high, token_budget=2)) == ["high"]


def test_entries_wake_each_other_unless_they_must_not() -> None:
    first = entry("a", "dragon", content="It guards gold.")
    second = entry("b", "gold", content="Gold came from the mine.")
    third = entry("c", "mine")

    found = lore(first, second, third, recursive=True)
    assert fired(found) == ["a", "b", "c"]
    assert why(found)["c"] == "key 'mine', here or in another entry"
    assert fired(lore(first, second, third)) == ["a"]
    assert fired(lore(first, second, third, recursive=True, max_recursion_steps=1)) == ["a", "b"]

    shy = entry("b", "gold", exclude_recursion=True)
    assert fired(lore(first, shy, recursive=True)) == ["a"]
    mute = entry("a", "dragon", content="It guards gold.", prevent_recursion=True)
    assert fired(lore(mute, second, recursive=True)) == ["a"]


def test_an_entry_can_wait_for_recursion_and_for_its_level() -> None:
    first = entry("a", "dragon")
    waiting = entry("b", "dragon", delay_until_recursion=1)
    longer = entry("c", "dragon", delay_until_recursion=2)

    assert fired(lore(waiting, recursive=False)) == []
    assert fired(lore(first, waiting, longer, recursive=True)) == ["a", "b", "c"]


def test_probability_asks_the_dice() -> None:
    unsure = entry("d", "dragon", probability=30)

    assert fired(lore(unsure, dice=lambda: 0.29)) == ["d"]
    found = lore(unsure, dice=lambda: 0.31)
    assert fired(found) == []
    assert why(found)["d"] == "the dice were against it (30 %)"


def test_sticky_entries_stay_rest_and_may_come_back() -> None:
    one = entry("d", "dragon", sticky=3, cooldown=2)

    def at(messages: int, timed: Timed, *, said: str = "nothing") -> Lore:
        return lore(one, said=["A: -"] * (messages - 1) + [f"A: {said}"], timed=timed)

    begun = at(10, Timed(), said="dragon")
    assert begun.timed == Timed((("d", 10, 13),), (("d", 10, 12),))
    assert why(at(12, begun.timed))["d"] == "it is sticky"
    ended = at(13, begun.timed, said="dragon")
    assert fired(ended) == []
    assert why(ended)["d"] == "it rests until there are 15 messages (cooldown)"
    assert fired(at(15, ended.timed, said="dragon")) == ["d"]


def test_a_message_taken_back_takes_its_timing_with_it() -> None:
    begun = lore(entry("d", "dragon", cooldown=5))

    assert fired(lore(entry("d", "dragon", cooldown=5), timed=begun.timed)) == ["d"]


def test_delay_waits_for_a_number_of_messages() -> None:
    assert fired(lore(entry("d", "dragon", delay=3))) == []
    assert fired(lore(entry("d", "dragon", delay=2))) == ["d"]


def test_of_a_group_one_is_taken_by_weight() -> None:
    light = entry("light", "dragon", groups=("g",), group_weight=10)
    heavy = entry("heavy", "dragon", groups=("g",), group_weight=90)

    assert fired(lore(light, heavy, dice=lambda: 0.05)) == ["light"]
    found = lore(light, heavy, dice=lambda: 0.95)
    assert fired(found) == ["heavy"]
    assert why(found)["light"] == "its group 'g' went to 'dragon'"


def test_in_a_group_order_scores_and_sticky_entries_can_decide() -> None:
    low = entry("low", "dragon", groups=("g",), order=1)
    first = entry("first", "dragon", groups=("g",), order=2, group_override=True)
    assert fired(lore(low, first, dice=lambda: 0.0)) == ["first"]

    more = entry("more", "dragon", "red", groups=("g",), group_scoring=True)
    less = entry("less", "dragon", groups=("g",), group_scoring=True)
    assert fired(lore(less, more, dice=lambda: 0.0)) == ["more"]

    sticky = Timed(sticky=(("low", 1, 9),))
    assert fired(lore(low, first, timed=sticky)) == ["low"]


def test_a_group_taken_in_an_earlier_round_is_closed() -> None:
    first = entry("a", "dragon", content="gold", groups=("g",))
    second = entry("b", "gold", groups=("g",))

    assert fired(lore(first, second, recursive=True)) == ["a"]


def test_too_few_entries_make_it_look_further_back() -> None:
    said = ["A: dragon", "B: cat", "C: one", "D: two"]
    book = (entry("d", "dragon"), entry("c", "cat"))

    assert fired(lore(*book, said=said, min_activations=1)) == ["c"]
    assert sorted(fired(lore(*book, said=said, min_activations=2))) == ["c", "d"]
    assert sorted(fired(lore(*book, said=said, min_activations=9))) == ["c", "d"]


def test_macros_are_filled_into_keys_and_contents() -> None:
    book = Lorebook((Entry("d", "{{char}} fears it", keys=("{{beast}}",)),))

    found = consult(
        book,
        SAID,
        budget=99,
        count=words,
        dice=lambda: 0,
        expand=lambda text: text.replace("{{beast}}", "dragon").replace("{{char}}", "Nova"),
    )

    assert [entry.content for entry in found.entries] == ["Nova fears it"]


_WORDS = st.sampled_from(["red", "dragon", "gold", "cat", "/d.*n/", "hello"])
_ENTRIES = st.lists(
    st.builds(
        Entry,
        uid=st.uuids().map(str),
        content=st.lists(_WORDS, max_size=6).map(" ".join),
        keys=st.lists(_WORDS, max_size=3).map(tuple),
        secondary_keys=st.lists(_WORDS, max_size=2).map(tuple),
        logic=st.sampled_from(Logic),
        enabled=st.booleans(),
        constant=st.booleans(),
        order=st.integers(0, 5),
        probability=st.integers(0, 100),
        exclude_recursion=st.booleans(),
        prevent_recursion=st.booleans(),
        delay_until_recursion=st.integers(0, 3),
        sticky=st.integers(0, 3),
        cooldown=st.integers(0, 3),
        delay=st.integers(0, 4),
        groups=st.lists(st.sampled_from(["g", "h"]), max_size=2).map(tuple),
        group_weight=st.integers(0, 10),
        group_override=st.booleans(),
        group_scoring=st.booleans(),
    ),
    max_size=8,
)
_TALK = st.lists(st.lists(_WORDS, max_size=4).map(" ".join), min_size=1, max_size=6)


@given(_ENTRIES, _TALK, st.integers(0, 12), st.integers(0, 4), st.integers(0, 99))
def test_whatever_a_book_holds_the_search_ends_within_its_budget(
    entries: list[Entry], talk: list[str], budget: int, least: int, seed: int
) -> None:
    timed = Timed()
    for messages in range(1, len(talk) + 1):

        def search(said: list[str] = talk[:messages], timed: Timed = timed) -> Lore:
            dice = random.Random(seed).random
            book = Lorebook(tuple(entries), recursive=True, min_activations=least)
            return consult(book, said, budget=budget, count=words, dice=dice, timed=timed)

        found = search()
        assert sum(words([one.content for one in found.entries])) <= budget
        assert found.tokens <= budget
        assert all(one.enabled for one in found.entries)
        assert [verdict.entry.uid for verdict in found.verdicts] == [one.uid for one in entries]
        assert sum(verdict.fired for verdict in found.verdicts) == len(found.entries)
        for group in ("g", "h"):
            held = [one for one in found.entries if group in one.groups]
            assert len(held) < 2 or timed.sticky
        assert found == search()
        timed = found.timed
