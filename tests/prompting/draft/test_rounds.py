"""`max_rounds` sends the newest rounds only."""

from typing import Any

import pytest

from bot.prompting.draft.rounds import rounds
from tests.shared_data import golden


@pytest.mark.parametrize(
    "case",
    [case for case in golden("rodel_templates") if case["input"]["op"] == "max_rounds"],
    ids=lambda case: case["id"],
)
def test_cuts_as_rodelagent_does(case: dict[str, Any]) -> None:
    # Notices of the app itself ("client") are no part of our conversations.
    spoken = [line for line in case["input"]["messages"] if not line.startswith("client")]

    assert rounds(spoken, case["input"]["max_rounds"]) == case["expected"]
