"""`max_rounds` limits the history to the newest rounds."""

from typing import Any

import pytest

from bot.prompting.compose.compose import last_rounds
from tests.shared_data import golden


@pytest.mark.parametrize(
    "case",
    [case for case in golden("rodel_templates") if case["input"]["op"] == "max_rounds"],
    ids=lambda case: case["id"],
)
def test_last_rounds_match_rodelagent(case: dict[str, Any]) -> None:
    # RodelAgent's own notices ("client") are not part of our conversations.
    spoken = [line for line in case["input"]["messages"] if not line.startswith("client")]

    assert last_rounds(spoken, case["input"]["max_rounds"]) == case["expected"]
