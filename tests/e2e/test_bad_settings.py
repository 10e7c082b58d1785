"""Wrong settings are named in one clear line, and no question is lost."""

import asyncio
import itertools
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.child_launcher import running_launcher
from tests.e2e.kill_load import wait_until_settled
from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import check_transcripts

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in itertools.count())
# A limit for the size of files; without bytecode caches, which would be truncated.
_SMALL_DISK = ("sh", "-c", 'ulimit -f 24; PYTHONDONTWRITEBYTECODE=1 exec "$@"', "sh")


def ask_everywhere(platforms: LoopbackPlatforms) -> None:
    for conversation in platforms.conversations.values():
        conversation.ask(next(_names))


@contextmanager
def extra_preset(service: ServiceProcess, name: str, text: str) -> Iterator[Path]:
    """Add a preset file within the block."""
    file = service.presets / f"{name}.json"
    file.write_text(text)
    try:
        yield file
    finally:
        file.unlink()


async def start_error(service: ServiceProcess, **settings: str) -> str:
    """Start it, and return the one line that it exits with."""
    await service.start(**settings)
    return await error_line(service)


async def error_line(service: ServiceProcess) -> str:
    code = await service.wait_for_exit()
    assert code == 1
    assert "Traceback" not in service.output()
    lines = re.findall(r"^troupe: (?!on |health at )(.+)$", service.output(), re.MULTILINE)
    assert len(lines) == 1, service.output()
    return str(lines[0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcess]:
    async with running_launcher() as launcher:
        installed = ServiceProcess(tmp_path_factory.mktemp("service"), platforms, model, launcher)
        yield installed
        if installed.is_running:
            await installed.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(platforms: LoopbackPlatforms, service: ServiceProcess) -> ServiceProcess:
    """Return a service that has answered before, in a private chat and a group of each platform."""
    for make in (
        platforms.channel,
        platforms.discord_dm,
        platforms.telegram_group,
        platforms.telegram_dm,
    ):
        make()
    await service.start_and_wait()
    ask_everywhere(platforms)
    await wait_until_settled(platforms, 20)
    assert await service.stop() == 0
    return service


@pytest.fixture(autouse=True)
def questions_while_it_is_down(installed: ServiceProcess, platforms: LoopbackPlatforms) -> None:
    ask_everywhere(platforms)


async def test_wrong_value_names_its_variable(installed: ServiceProcess) -> None:
    line = await start_error(installed, TROUPE_CONSOLE__PORT="many")
    assert line.startswith("TROUPE_CONSOLE__PORT: ")
    assert "integer" in line


async def test_missing_default_preset_gets_a_suggestion(
    installed: ServiceProcess,
) -> None:
    line = await start_error(installed, TROUPE_DEFAULT_PRESET="testr")
    assert "TROUPE_DEFAULT_PRESET" in line
    assert "did you mean 'tester'?" in line


async def test_broken_preset_names_file_and_line(installed: ServiceProcess) -> None:
    text = '{\n"name": "broken",\n"provider": "test",\n"model": "m",\n"sistem": "Hello."\n}'
    with extra_preset(installed, "broken", text) as file:
        line = await start_error(installed, TROUPE_DEFAULT_PRESET="broken")
    assert f"{file}, line 5: unknown key 'sistem'; did you mean 'system'?" in line


async def test_missing_provider_names_its_variable(
    installed: ServiceProcess,
) -> None:
    with extra_preset(
        installed, "stranger", '{"name": "stranger", "provider": "openai", "model": "m"}'
    ):
        line = await start_error(installed, TROUPE_DEFAULT_PRESET="stranger")
    assert "stranger" in line
    assert "TROUPE_PROVIDERS__OPENAI__API_KEY" in line


async def test_missing_model_names_its_path(installed: ServiceProcess) -> None:
    nowhere = str(installed.folder / "nowhere.gguf")
    line = await start_error(
        installed,
        TROUPE_PROVIDERS__TEST__KIND="llama_cpp",
        TROUPE_PROVIDERS__TEST__MODEL_PATH=nowhere,
    )
    assert nowhere in line


async def test_malformed_telegram_token_names_its_source(installed: ServiceProcess) -> None:
    line = await start_error(installed, TROUPE_TELEGRAM__TOKEN="nonsense")
    assert "TROUPE_TELEGRAM__TOKEN" in line
    assert "@BotFather" in line
    assert "nonsense" not in installed.output()


@pytest.mark.parametrize(
    ("name", "token", "source"),
    [
        ("telegram", "123456789:BBH-" + "y" * 31, "@BotFather"),
        ("discord", "wrong-token", "developer portal"),
    ],
)
async def test_token_refused_at_the_start_is_named_and_stops_no_other_platform(
    installed: ServiceProcess, name: str, token: str, source: str
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


async def test_port_in_use_names_its_variable(installed: ServiceProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = await start_error(installed, TROUPE_CONSOLE__PORT=port)
    assert port in line
    assert "TROUPE_CONSOLE__PORT" in line


async def test_full_disk_at_the_start_names_the_database(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path: Path
) -> None:
    fresh = ServiceProcess(tmp_path, platforms, model)
    await fresh.start(under=_SMALL_DISK)
    line = await error_line(fresh)
    assert "database" in line
    assert str(fresh.data) in line


async def test_second_process_on_the_data_dir_exits(
    installed: ServiceProcess, platforms: LoopbackPlatforms, model: ModelServer
) -> None:
    await installed.start_and_wait()
    other = ServiceProcess(installed.folder, platforms, model)
    other.log = installed.folder / "other.log"
    line = await start_error(other)
    assert f"process {installed.process.pid}" in line
    assert "TROUPE_DATA_DIR" in line
    await wait_until_settled(platforms, 20)
    assert await installed.stop() == 0


async def test_full_disk_during_a_run_loses_nothing(
    installed: ServiceProcess, platforms: LoopbackPlatforms
) -> None:
    await installed.start_and_wait()
    await wait_until_settled(platforms, 20)
    pid = installed.process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    ask_everywhere(platforms)
    await installed.wait_until_ready(status=503)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    await installed.wait_until_ready()
    await wait_until_settled(platforms, 20)
    assert await installed.stop() == 0


async def test_every_question_asked_meanwhile_is_answered(
    installed: ServiceProcess, platforms: LoopbackPlatforms
) -> None:
    await installed.start_and_wait()
    await wait_until_settled(platforms, 30)
    assert await installed.stop() == 0
    result = check_transcripts(platforms.messages())
    assert result.is_clean, str(result)
