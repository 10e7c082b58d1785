"""What an operator can get wrong ends in one clear line, and costs nobody an answer."""

import itertools
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.checker import judge
from tests.e2e.model import Model
from tests.e2e.nursery import nursery
from tests.e2e.service import Service
from tests.e2e.siege import finished
from tests.e2e.world import World

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in itertools.count())
# No file may grow beyond it; without a cache of its code, which Python would leave cut short there.
_SMALL_DISK = ("sh", "-c", 'ulimit -f 24; PYTHONDONTWRITEBYTECODE=1 exec "$@"', "sh")


def ask_everywhere(world: World) -> None:
    for place in world.places.values():
        place.ask(next(_names))


@contextmanager
def added(service: Service, name: str, text: str) -> Iterator[Path]:
    """Put a preset file there for the length of the block."""
    file = service.presets / f"{name}.json"
    file.write_text(text)
    try:
        yield file
    finally:
        file.unlink()


async def refusal(service: Service, **settings: str) -> str:
    """Start it; gives the one line that it ends with."""
    await service.start(**settings)
    return await last_line(service)


async def last_line(service: Service) -> str:
    code = await service.ended()
    assert code == 1
    assert "Traceback" not in service.said()
    lines = re.findall(r"^troupe: (?!on |health at )(.+)$", service.said(), re.MULTILINE)
    assert len(lines) == 1, service.said()
    return str(lines[0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    world: World, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    async with nursery() as cradle:
        installed = Service(tmp_path_factory.mktemp("service"), world, model, cradle)
        yield installed
        if installed.running:
            await installed.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(world: World, service: Service) -> Service:
    """A service that has run well before, in a private chat and a group of each platform."""
    for make in (world.channel, world.discord_private, world.group, world.telegram_private):
        make()
    await service.begin()
    ask_everywhere(world)
    await finished(world, 20)
    assert await service.stop() == 0
    return service


@pytest.fixture(autouse=True)
def somebody_asks_meanwhile(installed: Service, world: World) -> None:
    ask_everywhere(world)


async def test_wrong_value_is_named_by_its_variable(installed: Service) -> None:
    line = await refusal(installed, TROUPE_CONSOLE__PORT="many")
    assert line.startswith("TROUPE_CONSOLE__PORT: ")
    assert "integer" in line


async def test_default_preset_that_is_not_there_gets_a_suggestion(installed: Service) -> None:
    line = await refusal(installed, TROUPE_DEFAULT_PRESET="testr")
    assert "TROUPE_DEFAULT_PRESET" in line
    assert "did you mean 'tester'?" in line


async def test_broken_preset_is_named_with_its_line(installed: Service) -> None:
    text = '{\n"name": "broken",\n"provider": "test",\n"model": "m",\n"sistem": "Hello."\n}'
    with added(installed, "broken", text) as file:
        line = await refusal(installed)
    assert f"{file}, line 5: unknown key 'sistem'; did you mean 'system'?" in line


async def test_provider_that_is_not_set_up_is_named_with_its_variable(installed: Service) -> None:
    with added(installed, "stranger", '{"name": "stranger", "provider": "openai", "model": "m"}'):
        line = await refusal(installed)
    assert "stranger" in line
    assert "TROUPE_PROVIDERS__OPENAI__API_KEY" in line


async def test_model_that_is_not_there_is_named_with_its_path(installed: Service) -> None:
    nowhere = str(installed.folder / "nowhere.gguf")
    line = await refusal(
        installed,
        TROUPE_PROVIDERS__TEST__KIND="llama_cpp",
        TROUPE_PROVIDERS__TEST__MODEL_PATH=nowhere,
    )
    assert nowhere in line


@pytest.mark.parametrize("token", ["nonsense", "123456789:BBH-" + "y" * 31])
async def test_wrong_telegram_token_is_told_with_where_to_get_one(
    installed: Service, token: str
) -> None:
    line = await refusal(installed, TROUPE_TELEGRAM__TOKEN=token)
    assert "TROUPE_TELEGRAM__TOKEN" in line
    assert "@BotFather" in line
    assert token not in installed.said()


async def test_wrong_discord_token_is_told_with_where_to_get_one(installed: Service) -> None:
    line = await refusal(installed, TROUPE_DISCORD__TOKEN="wrong-token")
    assert "TROUPE_DISCORD__TOKEN" in line
    assert "developer portal" in line


async def test_discord_token_that_the_gateway_refuses_is_told(
    installed: Service, world: World
) -> None:
    world.discord.gw_faults["refuse_identify"] = 4004
    try:
        line = await refusal(installed)
    finally:
        del world.discord.gw_faults["refuse_identify"]
    assert "TROUPE_DISCORD__TOKEN" in line


async def test_taken_port_is_told_with_its_variable(installed: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = await refusal(installed, TROUPE_CONSOLE__PORT=port)
    assert port in line
    assert "TROUPE_CONSOLE__PORT" in line


async def test_disk_that_is_full_at_the_start_is_told(
    world: World, model: Model, tmp_path: Path
) -> None:
    fresh = Service(tmp_path, world, model)
    await fresh.start(under=_SMALL_DISK)
    line = await last_line(fresh)
    assert "database" in line
    assert str(fresh.data) in line


async def test_second_process_is_sent_away(installed: Service, world: World, model: Model) -> None:
    await installed.begin()
    other = Service(installed.folder, world, model)
    other.log = installed.folder / "other.log"
    line = await refusal(other)
    assert f"process {installed.process.pid}" in line
    assert "TROUPE_DATA_DIR" in line
    await finished(world, 20)
    assert await installed.stop() == 0


async def test_disk_that_is_full_for_a_while_loses_nothing(
    installed: Service, world: World
) -> None:
    await installed.begin()
    await finished(world, 20)
    pid = installed.process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    ask_everywhere(world)
    await installed.ready(status=503)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    await installed.ready()
    await finished(world, 20)
    assert await installed.stop() == 0


async def test_whatever_was_asked_meanwhile_is_answered_in_the_end(
    installed: Service, world: World
) -> None:
    await installed.begin()
    await finished(world, 30)
    assert await installed.stop() == 0
    verdict = judge(world.posts())
    assert verdict.clean, str(verdict)
