"""The commands `troupe model` and `troupe db`."""

import contextlib
import hashlib
import sqlite3
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from typer.testing import CliRunner

from bot.cli.app import app
from bot.errors import SettingsError
from bot.storage.data_dir import DataDirUse, lock_data_dir
from bot.storage.database import NEWEST_REVISION
from tests.backends import tiny_gguf, toy_projector
from tests.cli.command import troupe


def test_model_pull_imports_and_describes_a_model(folder: Path) -> None:
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    model = tiny_gguf.write(folder / "tiny.gguf", family, general__license="mit")

    told = troupe("model", "pull", str(model))

    assert "the model is in data/models/tiny.gguf" in told
    assert f"sha256    {hashlib.sha256(model.read_bytes()).hexdigest()}" in told
    assert "license   mit" in told
    assert "memory    about 67 MB with 2 conversations of 4096 tokens" in told
    assert "__CONTEXT_TOKENS is above the model's limit of 512 tokens" in told
    assert troupe("model", "list") == "tiny  0 MB\n"
    assert troupe("model", "info", "tiny").splitlines()[:5] == told.splitlines()[1:6]
    told = troupe("model", "pull", str(toy_projector.write(folder / "mmproj.gguf")))
    assert "kind      clip" in told
    assert "use       a projector, not a model: to let the provider's model see images, set" in told
    assert "memory" not in told


def test_db_current_and_upgrade_show_the_revision(folder: Path) -> None:
    before, _, after = troupe("db", "current"), troupe("db", "upgrade"), troupe("db", "current")
    assert before.startswith(
        f"no tables yet; `troupe db upgrade` brings the database to {NEWEST_REVISION}"
    )
    assert after == f"{NEWEST_REVISION}\n"
    with contextlib.closing(sqlite3.connect(folder / "data" / "troupe.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    assert troupe("db", "upgrade").splitlines()[-1] == "the database is at revision 9999"


def test_db_backup_and_copy_create_independent_databases(folder: Path) -> None:
    troupe("db", "upgrade")
    report = troupe("db", "backup", "backup.db")
    assert report.startswith("the database was backed up to backup.db (0.")
    told = troupe("db", "copy", "--to", f"sqlite:///{folder / 'other.db'}")
    assert "set TROUPE_DATABASE_URL to the copy\n" in told
    for name in ("backup.db", "other.db"):
        assert read_revision(folder / name) == NEWEST_REVISION


def test_db_copy_fills_tables_upgraded_while_encryption_was_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_ENCRYPT_TEXTS", "true")
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", Fernet.generate_key().decode())
    other = f"sqlite:///{folder / 'other.db'}"
    troupe("db", "upgrade")
    troupe("db", "encrypt")  # it is noted in the audit log
    with monkeypatch.context() as changed:
        changed.setenv("TROUPE_DATABASE_URL", other)
        troupe("db", "upgrade")
    with lock_data_dir(folder / "data", DataDirUse.TERMINAL):
        assert isinstance(
            CliRunner().invoke(app, ["db", "copy", "--to", other]).exception, SettingsError
        )
    troupe("db", "copy", "--to", other)
    with contextlib.closing(sqlite3.connect(folder / "other.db")) as copy:
        assert copy.execute("SELECT count(*) FROM audit").fetchone() == (1,)


def read_revision(file: Path) -> str:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        [(found,)] = connection.execute("SELECT version_num FROM alembic_version")
    return str(found)


def test_db_copy_and_backup_report_a_missing_database_or_bad_target(folder: Path) -> None:
    for words in (("backup", "backup.db"), ("copy", "--to", "sqlite:///other.db")):
        with pytest.raises(SettingsError, match="there is no database in data yet"):
            troupe("db", *words)
    troupe("db", "upgrade")
    with pytest.raises(SettingsError, match="--to is not a database URL; write it as"):
        troupe("db", "copy", "--to", "other")
    with pytest.raises(SettingsError, match="name a different one"):
        troupe("db", "copy", "--to", "sqlite:///data/troupe.db")


@pytest.mark.parametrize("word", ["nothing.gguf", "../tiny", "a/b/c", "~root/x"])
def test_model_pull_of_unknown_source_is_reported_in_one_line(word: str) -> None:
    with pytest.raises(SettingsError) as refused:
        troupe("model", "pull", word)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["../../etc/passwd", "/etc/passwd", "x\0"])
def test_model_info_rejects_paths(word: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid name for a local model"):
        troupe("model", "info", word)
