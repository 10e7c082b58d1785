"""The recorded hour of docs/lively-group.md is played again: everything is shown as scripted."""

from pathlib import Path

import pytest

from tests.bench.lively_group import busiest_minute, record_both

pytestmark = [pytest.mark.soak, pytest.mark.service, pytest.mark.timeout(1200)]


async def test_lively_hour_is_shown_as_scripted_on_both_platforms(tmp_path: Path) -> None:
    for hour in await record_both(tmp_path, minute_seconds=4.0):
        answers = [what for _, kind, what in hour.events if kind == "answers"]
        assert len(answers) == hour.sends, "one notification for each answer"
        assert {one.author for one in answers} == {"Marlowe", "Nora"}
        assert (hour.lost, hour.refused) == (1, 1)
        assert busiest_minute(hour.calls) < 20
