"""`troupe bench messages` answers every question of a short run."""

from pathlib import Path

import pytest

from bot.cli.bench.messages import MessageCost, measure


@pytest.mark.slow
async def test_bench_messages_measures_every_message(tmp_path: Path) -> None:
    cost = await measure(tmp_path, chats=2, messages=2)

    assert cost.messages == 4
    assert cost.milliseconds > 0
    assert cost.probe_milliseconds > 0


def test_cpu_per_probe_is_the_cost_in_units_of_the_fixed_work() -> None:
    assert MessageCost(100, milliseconds=3.0, probe_milliseconds=1.5).cpu_per_probe == 2.0
