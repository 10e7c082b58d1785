"""A provider's API keys are used in turn; rejected keys are skipped."""

from pathlib import Path

import pytest

from bot.errors import SettingsError
from bot.settings import collect_secrets, read_settings
from bot.telemetry.secret_masker import SecretMasker
from tests.backends.asking import ask
from tests.backends.conftest import Connect, FakeClock
from tests.rigs.fake_openai import FakeOpenAI, Script

KEYS = {"api_key": None, "api_keys": "sk-a, sk-b,sk-c"}


def refusal(status: int, **headers: str) -> Script:
    return Script([b"{}"], status=status, headers=headers)


def keys_used(service: FakeOpenAI) -> list[str]:
    return [one["headers"]["authorization"].removeprefix("Bearer sk-") for one in service.log]


async def test_keys_are_used_in_turn(connect: Connect, service: FakeOpenAI) -> None:
    backend = connect(**KEYS)
    for _ in range(4):
        assert (await ask(backend)).error is None
    assert keys_used(service) == ["a", "b", "c", "a"]


async def test_invalid_key_is_skipped_for_an_hour(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    backend = connect(**KEYS)
    service.plays(refusal(401))
    answers = [await ask(backend) for _ in range(3)]
    assert [one.error for one in answers] == [None] * 3
    assert keys_used(service) == ["a", "b", "c", "b"]
    await clock.sleep(3601)
    await ask(backend)
    assert keys_used(service)[-2:] == ["b", "c"]
    await ask(backend)
    assert keys_used(service)[-1] == "a"


async def test_rate_limited_key_is_skipped_as_long_as_the_service_asks(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    backend = connect(**KEYS)
    service.plays(refusal(429, **{"Retry-After": "20"}))
    for _ in range(2):
        assert (await ask(backend)).error is None
    assert keys_used(service) == ["a", "b", "c"]
    await clock.sleep(21)
    await ask(backend)
    assert keys_used(service)[-1] == "a"


async def test_error_is_raised_if_all_keys_are_rejected(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays(*[refusal(401)] * 3)
    answer = await ask(connect(**KEYS))
    assert "rejected the API key (401)" in answer.error_texts
    assert keys_used(service) == ["a", "b", "c"]


async def test_keys_are_not_skipped_after_other_errors(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays(refusal(400))
    assert (await ask(connect(**KEYS))).error is not None
    assert keys_used(service) == ["a"]


def test_keys_from_a_file_are_masked_as_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-one\nsk-two\n", encoding="utf-8")
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY_FILE", str(file))
    settings = read_settings()
    assert {"sk-one", "sk-two"} <= collect_secrets(settings)
    assert "sk-one" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), ("\n", "there is no key in")]
)
def test_key_file_without_a_key_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, problem: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY_FILE", str(file))
    with pytest.raises(SettingsError, match=problem):
        read_settings()


def test_invalid_json_in_prices_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY", "sk-a")
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__PRICES", "cheap")
    with pytest.raises(SettingsError, match=r"^TROUPE_PROVIDERS__OPENAI__PRICES is not valid JSON"):
        read_settings()


async def test_keys_of_a_replaced_file_are_used_without_a_restart(
    connect: Connect, service: FakeOpenAI, clock: FakeClock, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-old\n", encoding="utf-8")
    backend = connect(api_key=None, api_key_file=file)
    await ask(backend)
    mounted = tmp_path / "new"
    mounted.write_text("sk-newer-key\nsk-newest-key\n", encoding="utf-8")
    mounted.replace(file)
    await ask(backend)
    await clock.sleep(6)
    for _ in range(2):
        assert (await ask(backend)).error is None
    assert keys_used(service) == ["old", "old", "newer-key", "newest-key"]
    assert "newest" not in SecretMasker(()).mask("provider says sk-newest-key")

    file.write_text("\n", encoding="utf-8")  # it is just being written
    await clock.sleep(6)
    await ask(backend)
    assert keys_used(service)[-1] == "newer-key"


async def test_configured_keys_are_kept_when_the_key_file_changes(
    connect: Connect, service: FakeOpenAI, clock: FakeClock, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-old\n", encoding="utf-8")
    backend = connect(api_key="sk-set", api_key_file=file)
    file.write_text("sk-another\n", encoding="utf-8")
    await clock.sleep(6)
    for _ in range(3):
        await ask(backend)
    assert keys_used(service) == ["set", "another", "set"]
