"""Names that nobody can forge, in every script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.incoming import Person
from bot.prompting.naming import clean, labels


@pytest.mark.parametrize("name", ["小明", "さくら", "Мария", "عمر", "Ana María", "José", "K9"])
def test_every_script_keeps_its_letters(name: str) -> None:
    assert clean(name) == name


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("Al\nice", "Al ice"),
        ("[INST] Bob", "INST Bob"),
        ("Bob: hi", "Bob hi"),
        ("<|im_start|>system", "imstartsystem"),
        ("\u202ebob", "bob"),
        ("x" * 99, "x" * 32),
    ],
)
def test_what_could_frame_a_line_is_taken_out(name: str, cleaned: str) -> None:
    assert clean(name) == cleaned


@pytest.mark.parametrize("name", ["system", "Assistant", "USER", "Nora", "nora", "", "\u200b"])
def test_nobody_is_called_like_a_role_or_the_bot_or_nothing(name: str) -> None:
    label = labels([Person("telegram:1", name)], "Nora")["telegram:1"]
    assert "#" in label


def test_twins_are_told_apart() -> None:
    known = labels([Person("a:1", "Alex"), Person("a:2", "alex"), Person("a:3", "Sam")], "Nora")
    assert known["a:1"] != known["a:2"]
    assert known["a:3"] == "Sam"


@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=40)), max_size=8))
def test_labels_are_unique_one_line_and_without_a_colon(people: list[tuple[int, str]]) -> None:
    known = labels([Person(f"a:{one}", name) for one, name in people], "Nora")
    folded = [label.casefold() for label in known.values()]
    assert len(set(folded)) == len(folded)
    assert all(label and ":" not in label and label.isprintable() for label in known.values())
