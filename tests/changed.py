"""Print the tests of the files changed since or in the last commit, for `make fast`."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from tests.checkout import CHECKOUT


def changed_files() -> list[str]:
    """Return the files that differ from the last commit, or else the files changed in it."""
    tracked = _git("diff", "--name-only", "HEAD")
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return [*tracked, *untracked] or _git("diff", "--name-only", "HEAD~1")


def find_tests(files: Iterable[str]) -> list[str]:
    """Return the test files and folders that belong to these files, without duplicates."""
    targets = {target for file in files for target in _target_of(PurePosixPath(file))}
    return [
        str(target)
        for target in sorted(targets)
        if not any(parent in targets for parent in target.parents)
    ]


def _target_of(file: PurePosixPath) -> Iterator[PurePosixPath]:
    """Map bot/turn/claims.py to tests/turn, a test file to itself, README.md to nothing."""
    match file.parts:
        case ["tests", *_, name] if name.startswith("test_") and (CHECKOUT / file).is_file():
            yield file
        case ["bot", module]:
            test = PurePosixPath("tests", f"test_{module}")
            if (CHECKOUT / test).is_file():
                yield test
        case ["bot" | "tests", first, *rest]:
            folders = [PurePosixPath("tests", first, *rest[:depth]) for depth in range(len(rest))]
            yield from [one for one in folders if (CHECKOUT / one).is_dir()][-1:]
        case _:
            return


def _git(*words: str) -> list[str]:
    command = ["git", "-c", "core.quotepath=off", *words]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


if __name__ == "__main__":
    sys.stdout.writelines(f"{target}\n" for target in find_tests(changed_files()))
