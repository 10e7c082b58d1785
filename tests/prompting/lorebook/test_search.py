"""Which entries are activated, rule by rule as in SillyTavern, and why."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import PresetError
from bot.prompting.lorebook.entries import (
    EntryPosition,
    KeyLogic,
    Lorebook,
    LoreEntry,
    LoreResult,
)
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.lorebook.search import LorebookSearch
from tests.prompting.samples import words

SAID = ("Bob: hello", "Alice: the red dragon sleeps")


def entry(uid: str, *keys: str, **values: Any) -> LoreEntry:
    return LoreEntry(uid, **{"content": f"about {uid}", "keys": keys, **values})


def lore(
    *entries: LoreEntry,
    said: Sequence[str] = SAID,
    budget: int = 1000,
    random_float: Callable[[], float] = lambda: 0.5,
    begun: Mapping[str, int] | None = None,
    **book: Any,
) -> LoreResult:
    return LorebookSearch(
        Lorebook(entries, **book),
        said,
        budget=budget,
        count=words,
        random_float=random_float,
        begun=begun,
    ).run()


def active(found: LoreResult) -> list[str]:
    return [entry.uid for entry in found.entries]


def reasons(found: LoreResult) -> dict[str, str]:
    return {one.entry.uid: one.reason for one in found.decisions}


def test_key_activates_its_entry_and_is_named_as_the_reason() -> None:
    found = lore(entry("d", "wyvern", "Dragon"), entry("c", "cat"))

    assert active(found) == ["d"]
    assert reasons(found) == {
        "d": "key 'Dragon' in “Alice: the red dragon sleeps”",
        "c": "none of its keys was found",
    }


def test_reason_quotes_the_newest_line_around_the_key() -> None:
    long = "Alice: " + "so we walked and walked " * 9 + "to the dragon " + "and went home " * 9

    found = lore(entry("d", "dragon"), said=("Bob: a dragon", long, "Bob: oh\nno"), scan_depth=3)

    reason = reasons(found)["d"]
    assert reason.startswith("key 'dragon' in “… ")
    assert "to the dragon and" in reason
    assert len(reason) < 100


def test_secondary_keys_follow_the_key_logic() -> None:
    def activates(logic: KeyLogic, *secondary: str) -> bool:
        return bool(active(lore(entry("d", "dragon", secondary_keys=secondary, logic=logic))))

    assert activates(KeyLogic.AND_ANY, "red", "blue")
    assert not activates(KeyLogic.AND_ANY, "green", "blue")
    assert activates(KeyLogic.AND_ALL, "red", "sleeps")
    assert not activates(KeyLogic.AND_ALL, "red", "blue")
    assert activates(KeyLogic.NOT_ANY, "green", "blue")
    assert not activates(KeyLogic.NOT_ANY, "red", "blue")
    assert activates(KeyLogic.NOT_ALL, "red", "blue")
    assert not activates(KeyLogic.NOT_ALL, "red", "sleeps")


def test_regex_keys_have_flags_and_match_parts_of_words() -> None:
    assert active(lore(entry("d", r"/drag.n\ssl/"))) == ["d"]
    assert active(lore(entry("d", "/DRAGON/"))) == []
    assert active(lore(entry("d", "/DRAGON/i"))) == ["d"]


def test_slow_regex_is_skipped_and_reported() -> None:
    found = lore(
        entry("slow", "/(a|a)+$/"), entry("d", "dragon"), said=["x: dragon " + "a" * 40 + "!"]
    )

    assert active(found) == ["d"]
    assert reasons(found)["slow"] == "its regular expression took too long and was skipped"


def test_a_thousand_slow_regexes_share_one_time_budget() -> None:
    slow = [entry(str(n), f"/(a|a|{n})+$/") for n in range(1000)]

    assert active(lore(*slow, said=["a" * 40 + "!"])) == []


def test_case_and_whole_words_of_the_entry_override_the_books() -> None:
    assert active(lore(entry("d", "Red"), case_sensitive=True)) == []
    assert active(lore(entry("d", "Red", case_sensitive=False), case_sensitive=True)) == ["d"]
    assert active(lore(entry("d", "drag"))) == []
    assert active(lore(entry("d", "drag", match_whole_words=False))) == ["d"]
    assert active(lore(entry("d", "red drag"))) == ["d"]  # a phrase is looked for as it is


def test_whole_words_in_scripts_without_spaces() -> None:
    assert active(lore(entry("z", "龙"), said=["A: 红龙睡了"])) == ["z"]
    assert active(lore(entry("c", "cat"), said=["A: 我的cat很小"])) == ["c"]
    assert active(lore(entry("k", "кот"), said=["A: который час"])) == []


def test_constant_entry_needs_no_key_and_disabled_entry_is_never_active() -> None:
    found = lore(entry("c", constant=True), entry("d", "dragon", enabled=False), entry("e"))

    assert active(found) == ["c"]
    assert reasons(found) == {"c": "it is constant", "d": "it is disabled", "e": "it has no keys"}


def test_scan_depth_of_the_entry_overrides_the_books() -> None:
    said = ["A: dragon", "B: one", "C: two"]

    assert active(lore(entry("d", "dragon"), said=said)) == []
    assert active(lore(entry("d", "dragon", scan_depth=3), said=said)) == ["d"]
    assert active(lore(entry("d", "dragon"), said=said, scan_depth=3)) == ["d"]
    assert active(lore(entry("d", "dragon", scan_depth=0), said=said, scan_depth=3)) == []


def test_no_key_matches_across_two_messages() -> None:
    assert active(lore(entry("x", r"/hello\s*Alice/", r"/sleeps\s+Bob/"))) == []


def test_higher_order_is_inserted_later() -> None:
    found = lore(
        entry("late", constant=True, order=200),
        entry("early", constant=True, order=1),
        entry("deep", constant=True, order=5, position=EntryPosition.AT_DEPTH),
    )

    assert active(found) == ["early", "deep", "late"]


def test_highest_order_takes_the_token_budget_first() -> None:
    low, high = entry("low", constant=True, order=1), entry("high", constant=True, order=2)
    free = entry("free", constant=True, order=0, ignores_budget=True)

    found = lore(low, high, free, budget=3)

    assert active(found) == ["free", "high"]
    assert reasons(found)["low"] == "over the budget of 3 tokens"
    assert active(lore(low, high, token_budget=2)) == ["high"]


def test_recursion_activates_entries_unless_they_exclude_it() -> None:
    first = entry("a", "dragon", content="It guards gold.")
    second = entry("b", "gold", content="Gold came from the mine.")
    third = entry("c", "mine")

    found = lore(first, second, third, recursive=True)
    assert active(found) == ["a", "b", "c"]
    assert reasons(found)["c"] == "key 'mine' in “Gold came from the mine.”"
    assert active(lore(first, second, third)) == ["a"]
    assert active(lore(first, second, third, recursive=True, max_recursion_steps=1)) == ["a", "b"]

    shy = entry("b", "gold", exclude_recursion=True)
    assert active(lore(first, shy, recursive=True)) == ["a"]
    mute = entry("a", "dragon", content="It guards gold.", prevent_recursion=True)
    assert active(lore(mute, second, recursive=True)) == ["a"]


def test_entry_waits_for_its_recursion_level() -> None:
    first = entry("a", "dragon")
    waiting = entry("b", "dragon", delay_until_recursion=1)
    longer = entry("c", "dragon", delay_until_recursion=2)

    assert active(lore(waiting, recursive=False)) == []
    assert active(lore(first, waiting, longer, recursive=True)) == ["a", "b", "c"]


def test_probability_compares_with_the_random_number() -> None:
    unsure = entry("d", "dragon", probability=30)

    assert active(lore(unsure, random_float=lambda: 0.29)) == ["d"]
    found = lore(unsure, random_float=lambda: 0.31)
    assert active(found) == []
    assert reasons(found)["d"] == "its probability of 30 % failed"


def test_sticky_entry_stays_then_is_on_cooldown_then_may_return() -> None:
    one = entry("d", "dragon", sticky=3, cooldown=2)

    def at(messages: int, begun: Mapping[str, int], *, said: str = "nothing") -> LoreResult:
        return lore(one, said=["A: -"] * (messages - 1) + [f"A: {said}"], begun=begun)

    first = at(10, {}, said="dragon")
    assert first.begun == {"d": 10}
    assert reasons(at(12, first.begun))["d"] == "it is sticky"
    ended = at(13, first.begun, said="dragon")
    assert active(ended) == []
    assert reasons(ended)["d"] == "it is on cooldown until there are 15 messages"
    assert active(at(15, ended.begun, said="dragon")) == ["d"]


def test_effects_of_a_deleted_message_are_dropped() -> None:
    first = lore(entry("d", "dragon", cooldown=5))

    assert active(lore(entry("d", "dragon", cooldown=5), begun=first.begun)) == ["d"]


def test_delay_waits_for_the_number_of_messages() -> None:
    assert active(lore(entry("d", "dragon", delay=3))) == []
    assert active(lore(entry("d", "dragon", delay=2))) == ["d"]


def test_group_selects_one_entry_by_weight() -> None:
    light = entry("light", "dragon", groups=("g",), group_weight=10)
    heavy = entry("heavy", "dragon", groups=("g",), group_weight=90)

    assert active(lore(light, heavy, random_float=lambda: 0.05)) == ["light"]
    found = lore(light, heavy, random_float=lambda: 0.95)
    assert active(found) == ["heavy"]
    assert reasons(found)["light"] == "its group 'g' already has 'dragon'"


def test_override_and_stickiness_decide_in_a_group() -> None:
    low = entry("low", "dragon", groups=("g",), order=1)
    first = entry("first", "dragon", groups=("g",), order=2, group_override=True)
    assert active(lore(low, first, random_float=lambda: 0.0)) == ["first"]

    assert active(lore(replace(low, sticky=8), first, begun={"low": 1})) == ["low"]


def test_group_with_an_active_entry_takes_no_other() -> None:
    first = entry("a", "dragon", content="gold", groups=("g",))
    second = entry("b", "gold", groups=("g",))

    assert active(lore(first, second, recursive=True)) == ["a"]


def test_macros_are_expanded_in_keys_and_contents() -> None:
    book = Lorebook((LoreEntry("d", "{{char}} fears it", keys=("{{beast}}",)),))

    found = LorebookSearch(
        book,
        SAID,
        budget=99,
        count=words,
        random_float=lambda: 0,
        expand=lambda text: text.replace("{{beast}}", "dragon").replace("{{char}}", "Nova"),
    ).run()

    assert [entry.content for entry in found.entries] == ["Nova fears it"]


_WORDS = st.sampled_from(["red", "dragon", "gold", "cat", "/d.*n/", "hello"])
_ENTRIES = st.lists(
    st.builds(
        LoreEntry,
        uid=st.uuids().map(str),
        content=st.lists(_WORDS, max_size=6).map(" ".join),
        keys=st.lists(_WORDS, max_size=3).map(tuple),
        secondary_keys=st.lists(_WORDS, max_size=2).map(tuple),
        logic=st.sampled_from(KeyLogic),
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
    ),
    max_size=8,
)
_TALK = st.lists(st.lists(_WORDS, max_size=4).map(" ".join), min_size=1, max_size=6)


@given(_ENTRIES, _TALK, st.integers(0, 12), st.integers(0, 99))
def test_search_of_any_book_ends_within_its_budget(
    entries: list[LoreEntry], talk: list[str], budget: int, seed: int
) -> None:
    begun: Mapping[str, int] = {}
    for messages in range(1, len(talk) + 1):

        def search(
            book: Lorebook, said: list[str] = talk[:messages], begun: Mapping[str, int] = begun
        ) -> LoreResult:
            random_float = random.Random(seed).random
            return LorebookSearch(
                book, said, budget=budget, count=words, random_float=random_float, begun=begun
            ).run()

        book = Lorebook(tuple(entries), recursive=True)
        found = search(book)
        assert sum(words([one.content for one in found.entries])) <= budget
        assert found.tokens <= budget
        assert all(one.enabled for one in found.entries)
        assert [one.entry.uid for one in found.decisions] == [one.uid for one in entries]
        assert sum(one.activated for one in found.decisions) == len(found.entries)
        for group in ("g", "h"):
            held = [one for one in found.entries if group in one.groups]
            assert len(held) < 2 or any(one.sticky and one.uid in begun for one in held)
        assert found == search(book)
        begun = found.begun


def test_contents_beyond_the_budget_are_not_counted() -> None:
    counted: list[str] = []

    def counting_words(texts: Sequence[str]) -> Sequence[int]:
        counted.extend(texts)
        return words(texts)

    book = Lorebook(tuple(entry(f"{one}", constant=True) for one in range(5000)))
    found = LorebookSearch(
        book, SAID, budget=20, count=counting_words, random_float=lambda: 0.5
    ).run()
    assert len(found.entries) == 10
    assert len(counted) < 200


@pytest.mark.parametrize("count", [1, 400_000])
def test_too_many_keys_are_refused(count: int) -> None:
    rows = [{"keys": ["k" * (3_000_000 // count)] * count, "content": "x"}]
    with pytest.raises(PresetError, match=r"big\.json: more than 50,000 keys"):
        read_lorebook({"entries": rows}, "big.json")
