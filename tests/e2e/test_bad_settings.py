"""Test that invalid settings are reported in one clear line, and no question is lost."""

import asyncio
import re
import resource
import socket
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.chats import Platforms
from tests.support.features import EVERYWHERE, ON_THE_WIRES
from tests.support.kill_load import wait_until_settled
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.transcripts import check_transcripts
from tests.waiting import PATIENCE_SECONDS

pytestmark = ON_THE_WIRES

# A limit for the size of files; without bytecode caches, which would be truncated.
_SMALL_DISK = ("sh", "-c", 'ulimit -f 24; PYTHONDONTWRITEBYTECODE=1 exec "$@"', "sh")


def ask_everywhere(platforms: Platforms) -> None:
    for where in platforms.conversations.values():
        where.ask()


async def start_error(service: Service, **settings: str) -> str:
    """Start the service, and return the single line that it prints before it exits."""
    await service.start(**settings)
    return await error_line(service)


async def error_line(service: Service) -> str:
    assert await service.wait_for_exit() == 1
    assert "Traceback" not in service.output()
    [line] = re.findall(r"^troupe: (?!on |health at )(.+)$", service.output(), re.MULTILINE)
    return str(line)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(platforms: Platforms, service: Service) -> Service:
    """Return a service that has answered in a private chat and a group of each platform."""
    for kind in EVERYWHERE:
        platforms.open(kind)
    await service.start_and_wait()
    ask_everywhere(platforms)
    await wait_until_settled(platforms, PATIENCE_SECONDS)
    assert await service.stop() == 0
    return service


@pytest.fixture(autouse=True)
def questions_while_it_is_down(installed: Service, platforms: Platforms) -> None:
    ask_everywhere(platforms)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"DEFAULT_PRESET": "testr"}, ["TROUPE_DEFAULT_PRESET", "did you mean 'tester'?"]),
        ({"TELEGRAM__TOKEN": "a_secret"}, ["TROUPE_TELEGRAM__TOKEN", "@BotFather"]),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
async def test_invalid_setting_is_reported(
    installed: Service, settings: dict[str, str], named: list[str]
) -> None:
    line = await start_error(installed, **{f"TROUPE_{name}": one for name, one in settings.items()})
    assert [word for word in named if word not in line] == []
    assert "a_secret" not in installed.output()


@pytest.mark.parametrize(
    ("name", "token", "source"),
    [
        ("telegram", "123456789:BBH-" + "y" * 31, "@BotFather"),
        ("discord", "wrong-token", "developer portal"),
    ],
)
async def test_refused_token_is_reported_and_other_platforms_work(
    installed: Service, name: str, token: str, source: str
) -> None:
    variable = f"TROUPE_{name.upper()}__TOKEN"
    await installed.start(**{variable: token})
    other = "discord" if name == "telegram" else "telegram"
    parts: dict[str, str] = {}
    while variable not in parts.get(name, "") or parts[other] != "ok":
        assert installed.is_running, installed.output()
        _, parts = await installed.parts()
        await asyncio.sleep(0.05)
    assert await installed.stop() == 0
    [line] = [one for one in installed.output().splitlines() if "token_rejected" in one]
    assert variable in line
    assert source in line
    assert token not in installed.output()


async def test_port_in_use_is_reported_with_its_variable(installed: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = await start_error(installed, TROUPE_CONSOLE__PORT=port)
    assert port in line
    assert "TROUPE_CONSOLE__PORT" in line


async def test_full_disk_at_startup_is_reported(
    platforms: Platforms, model: Model, tmp_path: Path
) -> None:
    fresh = Service(tmp_path, platforms, model)
    await fresh.start(under=_SMALL_DISK)
    line = await error_line(fresh)
    assert "database" in line
    assert str(fresh.data) in line


async def test_second_process_on_the_same_data_directory_exits(
    installed: Service, platforms: Platforms, model: Model
) -> None:
    await installed.start_and_wait()
    other = Service(installed.folder, platforms, model)
    other.log = installed.folder / "other.log"
    line = await start_error(other)
    assert f"process {installed.process.pid}" in line
    assert "TROUPE_DATA_DIR" in line
    await wait_until_settled(platforms, PATIENCE_SECONDS)
    assert await installed.stop() == 0


async def test_full_disk_while_running_loses_nothing(
    installed: Service, platforms: Platforms
) -> None:
    await installed.start_and_wait()
    await wait_until_settled(platforms, PATIENCE_SECONDS)
    pid = installed.process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    ask_everywhere(platforms)
    await installed.wait_until_ready(status=503)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    await installed.wait_until_ready()
    await wait_until_settled(platforms, PATIENCE_SECONDS)
    assert await installed.stop() == 0


async def test_questions_asked_during_a_startup_problem_are_answered_later(
    installed: Service, platforms: Platforms
) -> None:
    await installed.start_and_wait()
    await wait_until_settled(platforms, PATIENCE_SECONDS)
    assert await installed.stop() == 0
    result = check_transcripts(platforms.messages())
    assert result.is_clean, str(result)
