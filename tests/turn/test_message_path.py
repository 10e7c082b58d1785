"""Test that messages follow the path documented in the docstring of `bot`."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import bot
from bot.storage.database import Database
from tests.turn.setup import Setup

PACKAGE = Path(bot.__file__).parent
_DESCRIBED, _, _NAMED = (bot.__doc__ or "").partition("also enters")
STATIONS = re.findall(r"^    ([a-z_*/]+\.py)  ", _DESCRIBED, re.MULTILINE)
OTHERS = re.findall(r"[a-z_/]+\.py", _NAMED.partition("`ports.py`")[0])
NOT_IN_SETUP = (
    "platforms/",  # the test has fakes for the platform and the backend,
    "backends/",
    "runtime/keyed_worker_pool.py",  # and calls the inbox, the worker and the sender itself
    "delivery/pacing.py",
)
MAX_ENTERED = 60
"""The maximum number of modules between the inbox and the platform; issue 29 counted 99."""


@contextmanager
def traced_files() -> Iterator[list[str]]:
    """List the files of the package in the order in which they are first entered."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and file.is_relative_to(PACKAGE):
            entered[file.relative_to(PACKAGE).as_posix()] = None

    files: list[str] = []
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        files += entered


def test_documented_files_exist() -> None:
    assert [one for one in STATIONS if not list(PACKAGE.glob(one))] == []
    assert len(STATIONS + OTHERS) == len({*STATIONS, *OTHERS})


async def test_message_goes_through_the_modules_in_the_documented_order(database: Database) -> None:
    setup = Setup(database, ["Hello."])
    with traced_files() as files:
        await setup.say("Hi")
    expected = [one for one in STATIONS if not one.startswith(NOT_IN_SETUP)]
    assert [one for one in files if one not in OTHERS] == expected
    assert len(files) <= MAX_ENTERED
