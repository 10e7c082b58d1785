"""`troupe bench slots` with too few turns to mean anything."""

import re
from pathlib import Path

import pytest

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.cli.bench.slots import compare_slot_reuse
from tests.backends.local_model import lend_model


@pytest.mark.service
async def test_bench_slots_compares_troupe_with_llama_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = await lend_model(tmp_path)
    for name, number in {"_CONVERSATIONS": 2, "_SLOTS": 1, "_TURNS": 2}.items():
        monkeypatch.setattr(f"bot.cli.bench.slots.{name}", number)

    header, troupe, server = (
        await compare_slot_reuse(model, LlamaCppSettings(threads=1))
    ).splitlines()

    assert "turn 2   turn 2" in header
    assert re.match(r"Troupe +\d+\.\d% +\d+ ms +\d+ ms +1\.00 +[89]\d\.\d%, ", troupe)
    assert re.match(r"server defaults +\d+\.\d% +\d+ ms +\d+ ms +1\.00$", server)
