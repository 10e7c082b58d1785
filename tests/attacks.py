"""Load the hostile inputs of attacks.json, and add our own in the same format.

`tests/attack_tests.toml` lists the tests that use each category.
"""

import ast
import gzip
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.mark.structures import ParameterSet
from typing_extensions import override

from tests.checkout import CHECKOUT
from tests.shared_data import shared_folder

_ZEROS_A_MEMBER = 16 * 2**20


@cache
def attack_file() -> dict[str, Any]:
    text = (shared_folder() / "attacks.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def attacks(*categories: str) -> list[dict[str, Any]]:
    found = [case for case in attack_file()["cases"] if case["category"] in categories]
    assert found
    return found


def attack_texts(*categories: str) -> list[str]:
    return [text for case in attacks(*categories) for text in texts_in(expand(case["input"]))]


def with_ours(
    category: str, ours: Mapping[str, Any], slow: Collection[str] = ()
) -> list[ParameterSet]:
    """Return our inputs and those of a category as pytest parameters `(title, given)`."""
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


def secret_in(text: str) -> str:
    """Return the secret part of a text: the body of a key, a password, or the longest token."""
    if pem := re.search(r"-----BEGIN [^-]+-----\s*(\S+)", text):
        return str(pem[1])
    if named := re.search(r"://[^/\s:@]*:([^/\s@]+)@|\w: (?:\w+ )?(\S+)|bot(\d+\W\w+)", text):
        return str(next(found for found in named.groups() if found))
    return str(max(re.findall(r"[\w+/-]{6,}={0,2}", text), key=len))


@cache
def _tests_in(file: Path) -> set[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    body = ast.parse(file.read_text("utf-8")).body
    return {node.name for node in body if isinstance(node, functions)}


def exists(test: str) -> bool:
    """Return whether a test with this pytest name exists."""
    path, _, name = test.partition("::")
    return name in _tests_in(CHECKOUT / path)


def skip_for(test: str) -> NoReturn:
    """Skip a case because another test runs it; check that the other test exists."""
    assert exists(test), test
    pytest.skip(f"runs in {test}")


# --- generators --------------------------------------------------------------------------------


def expand(value: Any) -> Any:
    """Expand all generators in a JSON value; raise `ValueError` for an unknown one."""
    match value:
        case {"gen": name}:
            if name not in GENERATORS:
                raise ValueError(f"attacks.json has a generator {name!r} that is not written")
            return GENERATORS[name](value)
        case dict():
            return {key: expand(each) for key, each in value.items()}
        case list():
            return [expand(each) for each in value]
        case _:
            return value


def expanded(value: Any) -> str:
    text = expand(value)
    if not isinstance(text, str):
        raise TypeError(f"no text in {value!r}")
    return text


def texts_in(value: Any) -> list[str]:
    """Return the strings in an expanded value, in order, without the keys of objects."""
    match value:
        case str():
            return [value]
        case dict():
            return texts_in(list(value.values()))
        case list():
            return [text for each in value for text in texts_in(each)]
        case _:
            return []


def _nest(given: Mapping[str, Any]) -> str:
    depth = int(given["depth"])
    inner = expanded(given["open"]) * depth + expanded(given["core"])
    inner += expanded(given["close"]) * depth
    return expanded(given.get("prefix", "")) + inner + expanded(given.get("suffix", ""))


class GzipZeros(Iterable[bytes]):
    """A long gzip stream that unpacks to zeros, generated while it is read."""

    def __init__(self, size: int) -> None:
        self.size = size

    @override
    def __iter__(self) -> Iterator[bytes]:
        whole, rest = divmod(self.size, _ZEROS_A_MEMBER)
        member = gzip.compress(bytes(_ZEROS_A_MEMBER)) if whole else b""
        for _ in range(whole):
            yield member
        yield gzip.compress(bytes(rest))


GENERATORS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "repeat": lambda given: expanded(given["unit"]) * int(given["n"]),
    "repeat_list": lambda given: [expand(given["unit"])] * int(given["n"]),
    "nest": _nest,
    "concat": lambda given: "".join(expanded(part) for part in given["parts"]),
    "gzip_zeros": lambda given: GzipZeros(int(given["bytes"])),
}
