"""Test that settings, command line and service find every platform in the registry."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr
from typing_extensions import override

from bot.chat.incoming import Address, IncomingMessage, Person, WakeReason
from bot.cli.check import check_everything
from bot.errors import SettingsError
from bot.platforms import registry
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext, PlatformSettings, PlatformSpec
from bot.ports import Intake
from bot.service.run import open_service
from bot.settings import collect_secrets, describe_unknown_variables, read_settings
from tests.fakes import FakeSurface
from tests.waiting import PATIENCE_SECONDS

CHANNEL = Address("toy", "1")
SURFACE = FakeSurface()


class ToySettings(PlatformSettings):
    token: SecretStr | None = None
    greeting: str = "hello"

    @property
    @override
    def is_configured(self) -> bool:
        return self.token is not None


class ToyPlatform(LocalPlatform):
    """A platform that receives one message and ends once it is answered."""

    name, account, is_operators = "toy", "a toy", False
    surface = SURFACE

    def __init__(self, settings: ToySettings, context: PlatformContext) -> None:
        self._settings = settings
        self._context = context

    @override
    async def run(self, intake: Intake) -> None:
        ada, lane = Person("toy:7", "Ada"), (CHANNEL.lane,)
        text, now = self._settings.greeting, datetime.now(UTC)
        await intake.receive(
            [IncomingMessage(CHANNEL, "1", "1", ada, text, now, WakeReason.DM, lane)], {}
        )
        await self._context.wait_until_idle()


TOY = PlatformSpec(kind="toy", settings=ToySettings, factory=f"{__name__}:ToyPlatform")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlatformSpec:
    """Register a platform, and use a presets folder with one preset, which echoes."""
    monkeypatch.setattr(registry, "_SPECS_BY_KIND", {**registry._SPECS_BY_KIND})
    registry.register(TOY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    preset = {"name": "assistant", "provider": "echo", "model": "m"}
    (tmp_path / "presets" / "assistant.json").write_text(json.dumps(preset), encoding="utf-8")
    monkeypatch.setenv("TROUPE_PROVIDERS__ECHO__KIND", "echo")
    monkeypatch.setenv("TROUPE_CONSOLE__PORT", "0")
    monkeypatch.setenv("TROUPE_TOY__TOKEN", "toy-secret")
    monkeypatch.setattr("bot.cli.check._CHECK_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    return TOY


def test_registered_settings_are_read(toy: PlatformSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_TOY__GREETING", "good evening")
    settings = read_settings(admins="toy:7")
    assert settings.configured_platforms == [toy]
    assert settings.platform_settings(toy) == ToySettings(
        token=SecretStr("toy-secret"), greeting="good evening"
    )
    assert "toy-secret" in collect_secrets(settings)
    assert settings.admins == {"toy:7"}


def test_misspelled_settings_of_a_platform_are_reported(
    toy: PlatformSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_TOY_GREETING", "x")
    [line] = describe_unknown_variables()
    assert line.startswith("TROUPE_TOY_GREETING ")
    assert "TROUPE_TOY__GREETING?" in line
    monkeypatch.setenv("TROUPE_TOY__TOKN", "x")
    with pytest.raises(SettingsError, match="TROUPE_TOY__TOKN"):
        read_settings()


def test_settings_of_an_unregistered_platform_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_TOY__TOKEN", "x")
    assert "TROUPE_TOY__TOKEN is not a setting of Troupe" in describe_unknown_variables()


def test_kind_cannot_be_registered_twice(toy: PlatformSpec) -> None:
    with pytest.raises(SettingsError, match="'toy' is already registered"):
        registry.register(toy)


@pytest.mark.service
async def test_registered_platform_is_checked(toy: PlatformSpec) -> None:
    lines: list[str] = []
    assert await check_everything(read_settings(), lines.append)
    assert "ok     toy: a toy" in lines


@pytest.mark.service
async def test_message_of_a_registered_platform_is_answered(toy: PlatformSpec) -> None:
    notices: list[str] = []
    async with open_service(read_settings(), notices.append) as service:
        await service.serve()
    assert list(SURFACE.messages.values()) == ["hello"]
    assert "on toy as a toy" in notices


def test_settings_and_registry_import_no_vendor_library() -> None:
    code = (
        "import sys, bot.settings, bot.platforms.registry;"
        "print({name.split('.')[0] for name in sys.modules} & {'discord', 'aiogram', 'aiohttp'})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout.decode().strip() == "set()"
