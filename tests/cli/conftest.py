"""Commands run in an empty folder and an environment without settings."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory."""
    for name in os.environ:  # noqa: TID251 # to delete them
        if name.startswith("TROUPE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
