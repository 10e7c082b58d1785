"""Find the folder `shared` with the golden vectors, which is outside the repository."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def shared_folder() -> Path:
    """Return TROUPE_SHARED or `shared` next to or above the checkout; skip if there is none."""
    checkout = Path(__file__).resolve().parent.parent
    folders = [checkout.parent / "shared", checkout.parent.parent / "shared"]
    if "TROUPE_SHARED" in os.environ:  # noqa: TID251 # no setting of the service
        folders.insert(0, Path(os.environ["TROUPE_SHARED"]))  # noqa: TID251
    for folder in folders:
        if folder.is_dir():
            return folder
    reason = "the folder `shared` with the golden vectors is not beside the checkout"
    if "CI" in os.environ:  # noqa: TID251
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


@cache
def golden(name: str) -> list[dict[str, Any]]:
    """Read the golden vectors of a subject, such as `rodel_templates` or `modelfile`."""
    text = (shared_folder() / "golden" / f"{name}.public.json").read_text(encoding="utf-8")
    cases: list[dict[str, Any]] = json.loads(text)
    return cases
