"""Recorded response streams of services, from files next to the tests.

Each stream starts with a line `=== NAME => {...}` that states the expected result.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

_HEAD = re.compile(r"^=== (.+?) => (\{.*\})\n", re.MULTILINE)


class Stream(NamedTuple):
    body: bytes
    text: str
    reasoning: str = ""
    interrupted: bool = False


def read_streams(file: Path) -> dict[str, Stream]:
    _, *parts = _HEAD.split(file.read_text("utf-8"))
    found: dict[str, Stream] = {}
    for name, outcome, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        expected: dict[str, Any] = json.loads(outcome)
        found[name] = Stream(body.rstrip("\n").encode() + b"\n\n", **expected)
    return found
