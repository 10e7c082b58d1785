"""The hostile inputs of attacks.json, expanded, and beside them our own of the same form."""

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.shared_data import shared_folder


@cache
def _all() -> list[dict[str, Any]]:
    text = (shared_folder() / "attacks.json").read_text(encoding="utf-8")
    cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return cases


def attacks(*categories: str) -> list[dict[str, Any]]:
    found = [case for case in _all() if case["category"] in categories]
    assert found
    return found


def with_ours(
    category: str, ours: Mapping[str, Any], slow: Collection[str] = ()
) -> list[ParameterSet]:
    """The inputs of a category behind `ours`, by title, which run without the shared folder, too.

    Use as parameters `(title, given)`; those whose title is in `slow` are marked so.
    """
    own = [
        pytest.param(
            title, given, id=f"our {title}", marks=[pytest.mark.slow] if title in slow else []
        )
        for title, given in ours.items()
    ]
    try:
        found = attacks(category)
    except pytest.skip.Exception as absent:
        missing = pytest.mark.skip(reason=str(absent))
        return [*own, pytest.param("", None, id="attacks.json", marks=missing)]
    return [*own, *(pytest.param(one["title"], one["input"], id=one["title"]) for one in found)]


def expanded(value: Any) -> str:
    """Write out a generator: `repeat`, `nest` and `concat`."""
    match value:
        case str():
            return value
        case {"gen": "repeat", "unit": unit, "n": count}:
            return str(unit) * int(count)
        case {"gen": "concat", "parts": parts}:
            return "".join(expanded(part) for part in parts)
        case {"gen": "nest", "open": begin, "close": end, "core": core, "depth": depth}:
            inner = str(begin) * int(depth) + str(core) + str(end) * int(depth)
            return str(value.get("prefix", "")) + inner + str(value.get("suffix", ""))
        case _:
            raise ValueError(f"no text in {value!r}")
