"""The table of tests that try the cases of attacks.json is complete and correct."""

import gzip
import itertools
import tomllib
from collections.abc import Mapping, Sequence

import pytest

from tests.attacks import GENERATORS, GzipZeros, attack_file, exists, expand, texts_in
from tests.checkout import CHECKOUT

_TABLE = tomllib.loads((CHECKOUT / "tests" / "attack_tests.toml").read_text("utf-8"))
TESTS: Mapping[str, Sequence[str]] = _TABLE["tests"]


@pytest.mark.parametrize(("category", "tests"), TESTS.items())
def test_listed_tests_exist_and_use_their_category(category: str, tests: Sequence[str]) -> None:
    for test in tests:
        path, _, _ = test.partition("::")
        assert exists(test), test
        assert f'"{category}"' in (CHECKOUT / path).read_text(encoding="utf-8"), test


def test_every_category_oracle_and_generator_is_known() -> None:
    content = attack_file()

    assert {case["category"] for case in content["cases"]} <= set(TESTS)
    assert {case["oracle"]["type"] for case in content["cases"]} <= set(_TABLE["oracles"]["known"])
    assert set(content["generators"]) <= set(GENERATORS)
    for case in content["cases"]:
        expand(case["input"])  # raises for a generator that nobody has declared


# --- the loader --------------------------------------------------------------------------------


def test_generators_are_expanded_at_any_depth() -> None:
    given = {
        "a": [{"gen": "repeat", "unit": "xy", "n": 2}, 5],
        "b": {"gen": "repeat_list", "unit": {"gen": "repeat", "unit": "z", "n": 1}, "n": 3},
        "c": {
            "gen": "concat",
            "parts": ["<", {"gen": "nest", "open": "(", "core": "1", "close": ")", "depth": 2}],
        },
    }

    assert expand(given) == {"a": ["xyxy", 5], "b": ["z", "z", "z"], "c": "<((1))"}
    assert texts_in(expand(given)) == ["xyxy", "z", "z", "z", "<((1))"]


def test_generated_gzip_stream_unpacks_to_zeros() -> None:
    size = 20_000_000
    zeros = expand({"gen": "gzip_zeros", "bytes": size})

    assert isinstance(zeros, GzipZeros)
    assert gzip.decompress(b"".join(zeros)) == bytes(size)
    endless = expand({"gen": "gzip_zeros", "bytes": 10 * 2**30})
    assert sum(map(len, itertools.islice(endless, 4))) < 100_000


def test_unknown_generator_is_an_error() -> None:
    with pytest.raises(ValueError, match="a generator 'spiral'"):
        expand([{"gen": "spiral"}])
