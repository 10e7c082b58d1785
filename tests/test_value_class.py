"""Behavior of `value_class` at run time; mypy refuses assignments to the fields."""

import ast
from dataclasses import field, replace
from pathlib import Path

import pytest

from bot.value_class import value_class

BOT = Path(__file__).parent.parent / "bot"


@value_class
class Pair:
    left: int
    right: list[int] = field(default_factory=list)


@value_class(kw_only=True)
class Named:
    name: str


def test_value_class_has_slots_and_compares_and_hashes_by_its_fields() -> None:
    assert Pair(1) == Pair(1, []) != replace(Pair(1), left=2)
    assert {Named(name="a"), Named(name="a")} == {Named(name="a")}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1))
    with pytest.raises(AttributeError):
        Pair(1).other = 1  # type: ignore[attr-defined]


def test_immutable_dataclasses_use_value_class() -> None:
    slow = [
        f"{file.relative_to(BOT)}:{node.lineno}"
        for file in BOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("dataclass")
        if {"frozen", "slots"} <= {each.arg for each in node.keywords}
    ]
    assert slow == []
