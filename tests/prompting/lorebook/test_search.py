"""Lorebook entries are activated by SillyTavern's rules, with reasons."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import PresetError
from bot.prompting.compose.lore import list_inactive_entries
from bot.prompting.lorebook.entries import KeyLogic, Lorebook, LoreEntry, LoreResult
from bot.prompting.lorebook.files import read_lorebook
from bot.prompting.lorebook.search import LorebookSearch
from tests.prompting.samples import words
from tests.support.store import RECEIPT

RULES = json.loads((Path(__file__).parent / "rules.json").read_text("utf-8"))
SAID = ("Bob: hello", "Alice: the red dragon sleeps")


def entry(uid: str, *keys: str, **values: Any) -> LoreEntry:
    return LoreEntry(uid, **{"content": f"about {uid}", "keys": keys, **values})


def search_lore(
    *entries: LoreEntry,
    said: Sequence[str] = SAID,
    budget: int = 1000,
    draw_float: Callable[[], float] = lambda: 0.5,
    activation_turns: Mapping[str, int] | None = None,
    **book: Any,
) -> LoreResult:
    return LorebookSearch(
        Lorebook(entries, **book),
        said,
        budget=budget,
        counter=words,
        draw_float=draw_float,
        activation_turns=activation_turns,
    ).run()


def active_ids(found: LoreResult) -> list[str]:
    return [entry.uid for entry in found.entries]


def reasons(found: LoreResult) -> dict[str, str]:
    return {one.entry.uid: one.reason for one in found.decisions}


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=rule) for rule, cases in RULES.items() for one in cases]
)
def test_active_entries_follow_from_the_rules(case: dict[str, Any]) -> None:
    found = search_lore(
        *(entry(uid, **values) for uid, values in case["entries"].items()),
        said=case.get("said", SAID),
        budget=case.get("budget", 1000),
        draw_float=lambda: case.get("random", 0.5),
        activation_turns=case.get("activated_at"),
        **case.get("book", {}),
    )

    assert active_ids(found) == case["active"]
    assert reasons(found) | case.get("reasons", {}) == reasons(found)


def test_reason_quotes_the_newest_line_around_the_key() -> None:
    long = "Alice: " + "so we walked and walked " * 9 + "to the dragon " + "and went home " * 9

    found = search_lore(
        entry("d", "dragon"), said=("Bob: a dragon", long, "Bob: oh\nno"), scan_depth=3
    )

    reason = reasons(found)["d"]
    assert reason.startswith("key 'dragon' in “… ")
    assert "to the dragon and" in reason
    assert len(reason) < 100


def test_only_entries_over_the_budget_count_as_left_out() -> None:
    found = search_lore(
        entry("kept", constant=True, order=2),
        entry("cut", constant=True, order=1),
        entry("off", constant=True, enabled=False),
        entry("unlucky", constant=True, probability=1),
        entry("unmatched", "unicorn"),
        entry("other unmatched", "griffin"),
        budget=2,
    )

    dropped = list_inactive_entries(found)

    assert [one.name for one in dropped if one.was_wanted] == ["cut"]
    assert sum(one.count for one in dropped) == 5
    assert replace(RECEIPT, dropped=tuple(dropped)).omitted_count == 1


def test_a_thousand_slow_regexes_share_one_time_budget() -> None:
    slow = [entry(str(n), f"/(a|a|{n})+$/") for n in range(1000)]

    assert active_ids(search_lore(*slow, said=["a" * 40 + "!"])) == []


def test_sticky_entry_stays_active_then_cools_down_then_may_return() -> None:
    one = entry("d", "dragon", sticky=3, cooldown=2)

    def at(
        messages: int, activation_turns: Mapping[str, int], *, said: str = "nothing"
    ) -> LoreResult:
        return search_lore(
            one, said=["A: -"] * (messages - 1) + [f"A: {said}"], activation_turns=activation_turns
        )

    first = at(10, {}, said="dragon")
    assert first.activation_turns == {"d": 10}
    assert reasons(at(12, first.activation_turns))["d"] == "it is sticky"
    ended = at(13, first.activation_turns, said="dragon")
    assert active_ids(ended) == []
    assert reasons(ended)["d"] == "it is on cooldown until there are 15 messages"
    assert active_ids(at(15, ended.activation_turns, said="dragon")) == ["d"]


def test_macros_are_expanded_in_keys_and_contents() -> None:
    book = Lorebook((LoreEntry("d", "{{char}} fears it", keys=("{{beast}}",)),))

    found = LorebookSearch(
        book,
        SAID,
        budget=99,
        counter=words,
        draw_float=lambda: 0,
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
    activation_turns: Mapping[str, int] = {}
    for messages in range(1, len(talk) + 1):

        def search(
            book: Lorebook,
            said: list[str] = talk[:messages],
            activation_turns: Mapping[str, int] = activation_turns,
        ) -> LoreResult:
            draw_float = random.Random(seed).random
            return LorebookSearch(
                book,
                said,
                budget=budget,
                counter=words,
                draw_float=draw_float,
                activation_turns=activation_turns,
            ).run()

        book = Lorebook(tuple(entries), recursive=True)
        found = search(book)
        assert sum(words([one.content for one in found.entries])) <= budget
        assert found.tokens <= budget
        assert all(one.enabled for one in found.entries)
        assert [one.entry.uid for one in found.decisions] == [one.uid for one in entries]
        assert sum(one.is_activated for one in found.decisions) == len(found.entries)
        for group in ("g", "h"):
            held = [one for one in found.entries if group in one.groups]
            assert len(held) < 2 or any(one.sticky and one.uid in activation_turns for one in held)
        assert found == search(book)
        activation_turns = found.activation_turns


def test_contents_beyond_the_budget_are_not_counted() -> None:
    counted: list[str] = []

    def counting_words(texts: Sequence[str]) -> Sequence[int]:
        counted.extend(texts)
        return words(texts)

    book = Lorebook(tuple(entry(f"{one}", constant=True) for one in range(5000)))
    found = LorebookSearch(
        book, SAID, budget=20, counter=counting_words, draw_float=lambda: 0.5
    ).run()
    assert len(found.entries) == 10
    assert len(counted) < 200


@pytest.mark.parametrize("count", [1, 400_000])
def test_too_many_keys_are_refused(count: int) -> None:
    rows = [{"keys": ["k" * (3_000_000 // count)] * count, "content": "x"}]
    with pytest.raises(PresetError, match=r"big\.json: more than 50,000 keys"):
        read_lorebook({"entries": rows}, "big.json")
