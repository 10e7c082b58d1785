"""Settings, their sources, and the errors about invalid settings."""

import base64
import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.openai_compatible.services import SERVICE_ADDRESSES
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.backends.registry import backend_specs
from bot.errors import SettingsError
from bot.settings import collect_secrets, describe_unknown_variables, read_settings, settings_model
from bot.telemetry.secret_masker import SecretMasker
from tests.checkout import CHECKOUT

CANARY = "canary-4f1d2c"
_, *WRONG_SETTINGS = (CHECKOUT / "tests" / "wrong_settings.txt").read_text("utf-8").splitlines()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, and remove all settings from the environment."""
    for name in os.environ:  # noqa: TID251 # to take them away
        if name.startswith("TROUPE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_text(**given: object) -> str:
    with pytest.raises(SettingsError) as caught:
        read_settings(**given)
    return str(caught.value)


def test_defaults_need_no_external_services() -> None:
    settings = read_settings()
    assert settings.sqlalchemy_url == "sqlite:///data/troupe.db"
    assert settings.redis_url is None
    assert settings.providers["local"].kind == "llama_cpp"
    assert settings.configured_platforms == []


def test_environment_overrides_both_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "troupe.toml").write_text(
        'default_preset = "toml"\nlog_level = "debug"\n[console]\nport = 1\n', encoding="utf-8"
    )
    (folder / ".env").write_text(
        "TROUPE_DEFAULT_PRESET=file\nTROUPE_CONSOLE__PORT=2\nOTHER=x\n", encoding="utf-8"
    )
    monkeypatch.setenv("TROUPE_DEFAULT_PRESET", "environment")
    settings = read_settings()
    assert settings.default_preset == "environment"
    assert settings.console.port == 2
    assert settings.log_level == "debug"


@pytest.mark.parametrize("case", WRONG_SETTINGS)
def test_invalid_setting_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, _, line = case.partition(" -> ")
    variable, _, value = f"TROUPE_{given}".partition("=")
    monkeypatch.setenv(variable, value)
    told = error_text()
    assert told.startswith(line.format(variable, variable))
    assert len(told.splitlines()) == 1
    assert "toml" not in told


def test_each_invalid_setting_is_reported_in_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_LOG_FORMAT", "xml")
    monkeypatch.setenv("TROUPE_CONSOLE__PORT", "x")
    assert len(error_text().splitlines()) == 2


def test_invalid_toml_file_error_names_the_file(folder: Path) -> None:
    (folder / "troupe.toml").write_text("a = = b", encoding="utf-8")
    assert error_text().startswith("troupe.toml cannot be read: ")


def test_model_servers_on_this_machine_need_no_settings() -> None:
    ollama = read_settings().providers["ollama"]
    assert isinstance(ollama, OpenAISettings)
    assert (ollama.base_url, ollama.context_tokens) == ("http://127.0.0.1:11434/v1", 4096)


def test_empty_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "DATABASE_URL", "DISCORD__TOKEN", "CONSOLE__PORT", "PRESETS_DIR"):
        monkeypatch.setenv(f"TROUPE_{name}", "")
    settings = read_settings()
    assert (settings.redis_url, settings.presets_dir) == (None, None)
    assert settings.console.port == 8710
    assert settings.sqlalchemy_url.startswith("sqlite")


def test_admins_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_ADMINS", " discord:1, telegram:2 ,")
    assert read_settings().admins == {"discord:1", "telegram:2"}


def test_password_in_an_address_is_sent_but_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__BASE_URL", f"http://me:{CANARY}@127.0.0.1:9/v1")
    settings = read_settings()
    mine = settings.providers["mine"]
    assert isinstance(mine, OpenAISettings)
    assert mine.base_url == "http://127.0.0.1:9/v1"
    assert mine.basic_auth_headers == {
        "Authorization": "Basic " + base64.b64encode(f"me:{CANARY}".encode()).decode()
    }
    assert CANARY not in repr(settings)
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__API_KEY", "k")
    assert "remove TROUPE_PROVIDERS__MINE__API_KEY or the password in" in error_text()


@pytest.mark.parametrize(
    "admin", ["123", "telegram:", "telegram:123 OR 1=1", "telegram:-100555", "discord:*", "x:1"]
)
def test_admin_must_be_the_id_of_a_person(monkeypatch: pytest.MonkeyPatch, admin: str) -> None:
    monkeypatch.setenv("TROUPE_ADMINS", f"discord:1,{admin}")
    with pytest.raises(SettingsError, match="is not of the form discord:<id> or telegram:<id>"):
        read_settings()


@pytest.mark.parametrize("name", sorted(SERVICE_ADDRESSES))
def test_well_known_provider_needs_only_its_key(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"TROUPE_PROVIDERS__{name.upper()}__API_KEY", CANARY)
    assert read_settings().model_dump()["providers"][name]["base_url"] == SERVICE_ADDRESSES[name]


def test_names_are_sent_to_openai_only_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "MISTRAL_AI", "GROQ"):
        monkeypatch.setenv(f"TROUPE_PROVIDERS__{name}__API_KEY", CANARY)
    monkeypatch.setenv("TROUPE_PROVIDERS__GROQ__MESSAGE_NAMES", "true")
    providers = read_settings().model_dump()["providers"]
    assert [providers[name]["message_names"] for name in ("openai", "mistral_ai", "groq")] == [
        True,
        False,
        True,
    ]


def test_local_provider_defaults_to_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__PARALLEL", "4")
    local = read_settings().providers["local"]
    assert local == LlamaCppSettings(parallel=4)


def test_secrets_are_hidden_and_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "TELEGRAM__TOKEN": f"1:{CANARY}",
        "DISCORD__TOKEN": f"2{CANARY}",
        "REDIS_URL": f"redis://:{CANARY}@h/0",
        "DATABASE_URL": f"postgresql+asyncpg://bot:{CANARY}@h/db",
        "PROVIDERS__OPENAI__API_KEY": f"3{CANARY}",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"TROUPE_{name}", value)
    settings = read_settings()
    assert CANARY not in repr(settings) + str(settings) + str(settings.model_dump())
    assert CANARY not in settings.model_dump_json()
    assert collect_secrets(settings) == set(given.values())


def test_error_does_not_quote_the_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_DISCORD", CANARY)
    monkeypatch.setenv("TROUPE_TELEGRAM__TOKN", CANARY)
    assert CANARY not in error_text()


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("TROUPE_DISCORD_TOKEN", "TROUPE_DISCORD__TOKEN"),
        ("TROUPE_DATADIR", "TROUPE_DATA_DIR"),
        ("TROUPE_PROVIDER__OPENAI__API_KEY", "TROUPE_PROVIDERS__OPENAI__API_KEY"),
        ("TROUPE_XYZZY", None),
    ],
)
@pytest.mark.parametrize("source", ["environment", ".env"])
def test_unknown_variable_error_suggests_the_nearest_setting(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    variable: str,
    nearest: str | None,
) -> None:
    if source == "environment":
        monkeypatch.setenv(variable, "1")
    else:
        (folder / ".env").write_text(f"OTHER=1\n{variable}=1\n", encoding="utf-8")
    hint = f"; did you mean {nearest}?" if nearest else ""
    assert describe_unknown_variables() == [f"{variable} is not a setting of Troupe{hint}"]


def test_variables_of_nested_settings_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in settings_model().model_fields:
        monkeypatch.setenv(f"TROUPE_{name.upper()}", "1")
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__API_KEY", "1")
    assert describe_unknown_variables() == []


@pytest.mark.parametrize(
    ("kind", "missing"), [("openai", "BASE_URL"), ("gguf", "MODEL_PATH"), ("onnx", "MODEL_PATH")]
)
def test_incomplete_embedding_settings_are_an_error(kind: str, missing: str) -> None:
    with pytest.raises(SettingsError, match=f"needs TROUPE_EMBEDDING__{missing}"):
        read_settings(embedding={"kind": kind})


def test_every_setting_has_a_description() -> None:
    groups = [settings_model(), *(spec.settings for spec in backend_specs())]
    for field in settings_model().model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            groups.append(field.annotation)
    without = [
        f"{group.__name__}.{name}"
        for group in groups
        for name, field in group.model_fields.items()
        if not field.description and name != "kind"  # each kind narrows the one it inherits
    ]
    assert without == []


@pytest.mark.parametrize(
    "name",
    [
        "DATABASE_URL=postgresql+asyncpg://me:{}@db/chat",
        "REDIS_URL=redis://:{}@redis:6379/0",
        "TRACES_URL=http://me:{}@collector:4318",
        "DISCORD__API_BASE=http://me:{}@proxy/api/v10",
        "TELEGRAM__API_BASE=http://me:{}@proxy",
        "EMBEDDING__BASE_URL=http://me:{}@host/v1",
        "PROVIDERS__ACME__BASE_URL=http://me:{}@host/v1",
        "MCP_SERVERS__FILES__URL=http://me:{}@host/mcp",
    ],
)
def test_password_in_any_address_is_a_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, _, address = name.partition("=")
    monkeypatch.setenv(f"TROUPE_{setting}", address.format("canary%40pw"))
    mask = SecretMasker(collect_secrets(read_settings())).mask
    for written in ("canary%40pw", "canary@pw"):
        assert mask(f"it rejects {written} now") == "it rejects *** now"
