"""`troupe keys` stores provider keys encrypted, and the service loads them."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.errors import SettingsError, TroupeError
from bot.runtime.clock import SystemClock
from bot.service.resources import add_stored_keys
from bot.settings import collect_secrets, read_settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.operation import AuditLog
from tests.cli.command import read_audit_log, troupe, use_database

SECRET, OTHER = "sk-SECRET-1111", "sk-SECRET-2222"
OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.fixture(autouse=True)
def _prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", OLD)
    monkeypatch.setenv("TROUPE_PROVIDERS__GROQ__STORED_KEYS", "true")


def run_keys(*words: str, given: str | None = None) -> str:
    return troupe("keys", *words, given=given)


def provider_keys() -> list[str]:
    settings = asyncio.run(add_stored_keys(read_settings()))
    provider: Any = settings.providers["groq"]
    assert isinstance(provider, HttpProviderSettings)
    return [key.get_secret_value() for key in provider.keys]


def test_stored_keys_are_used_and_not_readable_in_the_files(folder: Path) -> None:
    run_keys("add", "groq", given=f"{SECRET}\n")
    run_keys("add", "groq", given=f"{OTHER}\n")
    run_keys("add", "openai", given="sk-other-provider\n")
    assert provider_keys() == [SECRET, OTHER]
    files = [file for file in (folder / "data").rglob("*") if file.is_file()]
    assert files
    assert not any(b"SECRET" in file.read_bytes() for file in files)
    settings = asyncio.run(add_stored_keys(read_settings()))
    assert {SECRET, OTHER, OLD} <= collect_secrets(settings)
    listed = run_keys("list")
    assert re.match(r"1  groq  .*…1111\n2  groq  .*…2222\n", listed)
    assert "SECRET" not in f"{settings!r} {listed}"


def test_old_encryption_key_is_not_needed_after_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    run_keys("add", "groq", given=SECRET)
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    assert provider_keys() == [SECRET]
    assert "encryption key: 1 keys, " in run_keys("rotate")
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", NEW)
    assert provider_keys() == [SECRET]
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", OLD)
    with pytest.raises(SettingsError, match="not in TROUPE_ENCRYPTION_KEYS"):
        provider_keys()


def test_rotation_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run_keys("add", "groq", given=SECRET)
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", f"{NEW}")
    run_keys("add", "groq", given=OTHER)
    with pytest.raises(TroupeError):
        run_keys("rotate")
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", f"{OLD},{NEW}")
    assert provider_keys() == [SECRET, OTHER]


def test_encryption_keys_can_be_read_from_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_keys("add", "groq", given=SECRET)
    monkeypatch.delenv("TROUPE_ENCRYPTION_KEYS")
    (folder / "mounted").write_text(f"{NEW}\n{OLD}\n")
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS_FILE", str(folder / "mounted"))
    assert provider_keys() == [SECRET]


def test_generated_encryption_key_works_and_a_removed_provider_key_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", run_keys("new").strip())
    run_keys("add", "groq", given=SECRET)
    assert provider_keys() == [SECRET]
    run_keys("remove", "1")
    with pytest.raises(SettingsError, match="run `troupe keys add groq`"):
        provider_keys()
    with pytest.raises(TroupeError, match="there is no key 7"):
        run_keys("remove", "7")


def test_malformed_encryption_key_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", "SECRET")
    with pytest.raises(SettingsError, match="as printed by `troupe keys new`") as refused:
        provider_keys()
    assert "SECRET" not in str(refused.value)
    monkeypatch.delenv("TROUPE_ENCRYPTION_KEYS")
    with pytest.raises(SettingsError, match="set TROUPE_ENCRYPTION_KEYS"):
        provider_keys()


def read_stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in (folder / "data").glob("troupe.db*"))


def read_setting() -> str:
    found = use_database(
        lambda database: SqlChatSettings(database, SystemClock()).get_all(["telegram:1"], "persona")
    )
    return found["telegram:1"]


def test_encrypting_rotating_and_decrypting_texts_is_audited_without_keys(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_keys("add", "groq", given=SECRET)
    use_database(
        lambda database: SqlChatSettings(database, SystemClock()).set(
            "telegram:1", "persona", "canary", "me"
        )
    )
    assert b"canary" in read_stored_bytes(folder)
    with pytest.raises(SettingsError, match="set TROUPE_ENCRYPT_TEXTS=true first"):
        troupe("db", "encrypt")

    monkeypatch.setenv("TROUPE_ENCRYPT_TEXTS", "true")
    assert troupe("db", "encrypt").endswith("newly encrypted rows: 1\n")
    assert b"canary" not in read_stored_bytes(folder)
    with pytest.raises(SettingsError, match="unset TROUPE_ENCRYPT_TEXTS first"):
        troupe("db", "decrypt")

    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    assert "encryption key: 1 keys, " in run_keys("rotate")
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", NEW)
    assert read_setting() == "canary"
    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", OLD)
    with pytest.raises(SettingsError, match="add that key to"):
        read_setting()

    monkeypatch.setenv("TROUPE_ENCRYPTION_KEYS", NEW)
    monkeypatch.delenv("TROUPE_ENCRYPT_TEXTS")
    assert read_setting() == "canary"
    assert troupe("db", "decrypt").endswith("newly decrypted rows: 1\n")
    run_keys("remove", "1")
    monkeypatch.delenv("TROUPE_ENCRYPTION_KEYS")
    assert read_setting() == "canary"
    assert b"canary" in read_stored_bytes(folder)
    noted = use_database(lambda database: AuditLog(database, SystemClock()).newest(10))
    assert SECRET not in repr(noted)
    assert read_audit_log() == [
        ("command line", "add provider key", "groq"),
        ("command line", "encrypt texts", "all"),
        ("command line", "rotate encryption key", "all"),
        ("command line", "decrypt texts", "all"),
        ("command line", "remove provider key", "1"),
    ]


def test_encryption_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TROUPE_ENCRYPTION_KEYS")
    monkeypatch.setenv("TROUPE_ENCRYPT_TEXTS", "true")
    troupe("db", "upgrade")  # it stores no text
    with pytest.raises(SettingsError, match="ENCRYPTION_KEYS to the output of `troupe keys new`"):
        troupe("nodes")
