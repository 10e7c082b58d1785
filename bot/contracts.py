"""Contract tests of backends and surfaces, as a pytest plugin for authors of plug-ins.

    pytest -p bot.contracts --pyargs bot.contracts --troupe-plugin eliza
    pytest -p bot.contracts --pyargs bot.contracts --troupe-plugin filedrop --troupe-chat alice

Requires pytest-asyncio. Settings are read from the current folder and the environment, including
TROUPE_PLUGINS; a backend is tested with the settings of the provider `tested`. The tests of a
platform send real messages to the chat.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bot.backends.factory import make_backend
from bot.chat.incoming import Address
from bot.chat.outgoing import MessageContent, MessageSearch, OutgoingMessage
from bot.chat.prompt import Delta, Finish, GenerationEvent, Message, Prompt
from bot.errors import MessageNotFound
from bot.platforms.registry import create_platform
from bot.platforms.spec import PlatformContext
from bot.ports import Backend, Surface
from bot.runtime.plugins import enabled_plugins, load_errors
from bot.settings import Settings, read_settings
from bot.templates.renderer import Renderer

pytestmark = pytest.mark.asyncio
PROMPT = Prompt(
    messages=(
        Message("system", "You are helpful."),
        Message("user", "What is the capital of France?"),
        Message("assistant", "Paris."),
        Message("user", "And which one is the capital of Italy?"),
    ),
    model="default",
    conversation="telegram:1",
    stop=("\nAnn:",),
    parameters={"temperature": 0, "user_template": "{{ content }}"},
    max_output_tokens=30,
)
_TIMEOUT_SECONDS = 60.0
_TEXT, _OTHER_TEXT = "The **washer** is done.", "The dryer is done."


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--troupe-plugin", help="the name of the plug-in")
    parser.addoption("--troupe-chat", help="the id of a chat on the platform to test")


@pytest_asyncio.fixture
async def backend(pytestconfig: pytest.Config, tmp_path: Path) -> AsyncIterator[Backend]:
    spec, settings = _find_plugin(pytestconfig, "backends")
    provider = settings.providers.get("tested") or spec.settings()
    async with Renderer() as renderer:
        tested_backend = make_backend("tested", provider, tmp_path, renderer)
        yield tested_backend
        await tested_backend.close()
        await tested_backend.close()  # closing again must be harmless


@pytest_asyncio.fixture
async def surface(pytestconfig: pytest.Config, tmp_path: Path) -> AsyncIterator[Surface]:
    spec, settings = _find_plugin(pytestconfig, "platforms")
    platform = create_platform(
        spec, settings.platform_settings(spec), PlatformContext(data_dir=tmp_path)
    )
    yield platform.surface
    await platform.close()


@pytest.fixture
def address(pytestconfig: pytest.Config) -> Address:
    spec, _ = _find_plugin(pytestconfig, "platforms")
    return Address(spec.kind, pytestconfig.getoption("--troupe-chat"))


def _find_plugin(config: pytest.Config, group: str) -> tuple[Any, Settings]:
    name, settings = config.getoption("--troupe-plugin"), read_settings()
    assert not load_errors, load_errors
    if name not in enabled_plugins(group):
        pytest.skip(f"TROUPE_PLUGINS enables no plug-in {name} in troupe.{group}")
    return enabled_plugins(group)[name], settings


async def _generate_answer(backend: Backend) -> tuple[str, list[GenerationEvent]]:
    async with aclosing(backend.generate(PROMPT)) as events:
        received_events = [one async for one in events]
    return "".join(one.text for one in received_events if isinstance(one, Delta)), received_events


async def test_answer_consists_of_deltas_and_one_finish(backend: Backend) -> None:
    text, events = await _generate_answer(backend)

    assert text
    assert [one for one in events if isinstance(one, Finish)] == events[-1:]
    assert all(one.text for one in events if isinstance(one, Delta))
    assert isinstance(events[-1], Finish)
    assert events[-1].usage.prompt_tokens > 0
    assert events[-1].usage.output_tokens > 0


async def test_concurrent_answers_do_not_mix(backend: Backend) -> None:
    async with asyncio.TaskGroup() as tasks:
        requests = [tasks.create_task(_generate_answer(backend)) for _ in range(5)]

    assert len({task.result()[0] for task in requests}) == 1


async def test_generator_can_be_closed_after_any_delta(backend: Backend) -> None:
    async with aclosing(backend.generate(PROMPT)) as pieces:
        assert isinstance(await anext(pieces), Delta)

    assert (await _generate_answer(backend))[0]


async def test_generation_can_be_cancelled(backend: Backend) -> None:
    task = asyncio.create_task(_generate_answer(backend))
    await asyncio.sleep(0)
    task.cancel()
    ended_tasks, _ = await asyncio.wait({task}, timeout=_TIMEOUT_SECONDS)

    assert ended_tasks
    assert (await _generate_answer(backend))[0]


async def test_check_returns_a_description(backend: Backend) -> None:
    assert await backend.check()


async def test_message_that_is_sent_again_is_recognized(surface: Surface, address: Address) -> None:
    message = OutgoingMessage(address, MessageContent(_TEXT), "n1")
    other_message = OutgoingMessage(address, MessageContent(_OTHER_TEXT), "n2")
    first_message_id = await surface.send(message)

    if surface.limits(address).deduplicates_sends:
        assert await surface.send(message) == first_message_id
    else:
        assert await surface.find(message, MessageSearch(None, set())) == first_message_id
    assert await surface.find(other_message, MessageSearch(None, {first_message_id})) is None


async def test_message_can_be_changed_until_it_is_deleted(
    surface: Surface, address: Address
) -> None:
    content = MessageContent(_TEXT)
    message_id = await surface.send(OutgoingMessage(address, content, "n3"))
    for _ in range(2):
        await surface.edit(address, message_id, MessageContent(_OTHER_TEXT), interaction=None)
    for _ in range(2):
        await surface.delete(address, message_id)
    with pytest.raises(MessageNotFound):
        await surface.edit(address, message_id, content, interaction=None)
