"""The bench of places, with fewer turns than it takes to say anything."""

import re
from pathlib import Path

import pytest

from bot.cli.bench_slots import compare_places
from bot.settings import ProviderSettings
from tests.backends.local_model import lend_model


@pytest.mark.service
async def test_both_sides_answer_and_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = await lend_model(tmp_path)
    for name, number in {"_CONVERSATIONS": 2, "_PLACES": 1, "_TURNS": 2}.items():
        monkeypatch.setattr(f"bot.cli.bench_slots.{name}", number)

    header, ours, theirs = (
        await compare_places(model, ProviderSettings(kind="llama_cpp"))
    ).splitlines()

    assert "turn 2   turn 2" in header
    assert re.match(r"Troupe +\d+\.\d% +\d+ ms +\d+ ms +1\.00 +[89]\d\.\d%, ", ours)
    assert re.match(r"server defaults +\d+\.\d% +\d+ ms +\d+ ms +1\.00$", theirs)
