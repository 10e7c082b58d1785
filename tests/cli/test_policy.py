"""`troupe policy`: the data report for privacy reviews, and the drill that tests deletion."""

import json
from pathlib import Path

import pytest

from bot.errors import SettingsError, StoreError
from bot.service import drill
from bot.storage.statements import SQL, Statement
from tests.cli.command import troupe, use_database

pytestmark = pytest.mark.usefixtures("all_objects")


async def do_nothing(_: object) -> None:
    return


def test_policy_describes_the_current_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "- Kept: until /forget\n" in troupe("policy")
    for name, value in (("HISTORY_DAYS", "30"), ("RECEIPT_DAYS", "3"), ("ENCRYPT_TEXTS", "true")):
        monkeypatch.setenv(f"TROUPE_{name}", value)
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", troupe("keys", "new").strip())
    printed = troupe("policy")
    for line in (
        "## messages and answers",
        "- Place: SQLite, tables turn, summary",
        "- Kept: 30 days, or until /forget",
        "- Kept: 3 days, or until /forget",
        "- Kept: 400 days, also after /forget",
        "- Encrypted: yes, the texts",
        "- Sent to: local (on the bot's machine)",
    ):
        assert f"{line}\n" in printed


def test_policy_names_the_service_that_embeds_memories(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    preset = {"name": "nora", "provider": "local", "model": "default", "memory": True}
    (tmp_path / "nora.json").write_text(json.dumps(preset))
    monkeypatch.setenv("TROUPE_PRESETS_DIR", str(tmp_path))
    monkeypatch.setenv("TROUPE_EMBEDDING__BASE_URL", "https://embeddings.example/v1")
    sent = "- Sent to: local (on the bot's machine), https://embeddings.example/v1\n"
    assert sent in troupe("policy")


def test_drill_prints_what_was_deleted_and_fails_if_anything_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError, match="there is no database"):
        troupe("policy", "--drill")
    use_database(do_nothing)
    printed = troupe("policy", "--drill").splitlines()
    assert printed[-1] == "no traces left"
    assert any(one.startswith("turn.text") and one.endswith("   0 after") for one in printed)
    assert any(one.endswith("ids retained: usage") for one in printed)
    monkeypatch.setattr(drill, "_FORGET_TIMEOUT_SECONDS", 0)
    monkeypatch.setitem(SQL, "delete_listed", Statement("SELECT 1 WHERE 1 = 0"))
    with pytest.raises(
        StoreError,
        match=r"after the deletion, data is still stored: .*turn\.speaker_name, turn\.text",
    ):
        troupe("policy", "--drill")
