"""Open what generates answers: backends, templates, stories, tool servers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import field
from importlib import import_module  # noqa: TID251 # for what few installations need

import structlog

from bot.backends.factory import prepare_model
from bot.embedders.registry import CountedEmbedder, make_embedder
from bot.errors import BackendUnavailable
from bot.memory import RetrieveStories, StoryRetriever, index_stories, no_stories
from bot.ports import Backend, Stories, ToolServer
from bot.prompting.compose.instructions import story_queries_for
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.service.backends import add_backends
from bot.settings import Settings
from bot.storage.database import Database
from bot.storage.leases import read_installation_id
from bot.storage.usage import UsageLog
from bot.templates.renderer import Renderer
from bot.tool_servers.factory import open_tool_servers
from bot.value_class import value_class

_log = structlog.get_logger(__name__)


@value_class
class Models:
    """What generates answers."""

    renderer: Renderer
    backends: dict[str, Backend]
    """By provider; a preset that is published later may add one."""
    retrieve_stories: RetrieveStories
    tool_servers: Mapping[str, ToolServer] = field(default_factory=dict)
    """By the names in presets."""
    session_key: bytes = b""
    """The key with which backends hash conversation names; the same in all processes."""


@contextlib.asynccontextmanager
async def open_models(
    settings: Settings,
    presets: Mapping[str, Preset],
    stories: Mapping[str, Sequence[str]],
    database: Database,
    *,
    answers: bool = True,
) -> AsyncIterator[Models]:
    """Open what generates answers; raises `SettingsError`.

    Without `answers` prompts are only described, and no MCP server is connected.
    """
    async with contextlib.AsyncExitStack() as stack:
        renderer = await stack.enter_async_context(Renderer())
        session_key = (await read_installation_id(database)).encode()
        backends: dict[str, Backend] = {}
        add_backends(backends, settings, presets.values(), renderer, session_key)
        stack.push_async_callback(_close_all, backends)
        retrieve_stories = await stack.enter_async_context(
            open_story_retriever(settings, stories_by_preset(presets, stories), database)
        )
        servers = settings.mcp_servers if answers else {}  # presets that come later name them, too
        tool_servers = await stack.enter_async_context(
            open_tool_servers(servers, settings.data_dir)
        )
        yield Models(renderer, backends, retrieve_stories, tool_servers, session_key)


async def _close_all(backends: Mapping[str, Backend]) -> None:
    async with contextlib.AsyncExitStack() as stack:  # each, also if another one fails
        for backend in backends.values():
            stack.push_async_callback(backend.close)


async def prepare_models(
    settings: Settings, default: Preset, progress: Callable[[str], None]
) -> None:
    """Check or download the local models of the default preset and its fallbacks.

    Raises:
        SettingsError: a model file does not exist.
    """
    for preset in default.with_fallbacks:
        name = preset.provider
        provider = settings.providers.get(name)
        if provider is not None:
            await prepare_model(name, preset.model, provider, settings.data_dir, progress)


async def preload_default(backends: Mapping[str, Backend], default: Preset) -> None:
    """Load the default preset's model while everything else starts."""
    backend = backends[default.provider]
    try:
        await backend.preload(default.model)
    except BackendUnavailable as error:  # the first message gets the error
        _log.warning("preload_failed", preset=default.name, reason=str(error))


@contextlib.asynccontextmanager
async def open_story_retriever(
    settings: Settings, stories_by_character: Mapping[str, Sequence[str]], database: Database
) -> AsyncIterator[RetrieveStories]:
    """Index the presets' stories while the block runs; without stories load nothing.

    Raises:
        SettingsError: the embedding model that is set is not there.
    """
    if not stories_by_character:
        yield no_stories
        return
    embedder = make_embedder(settings.embedding, settings.data_dir)
    if embedder.is_metered:
        usage_log = UsageLog(database, SystemClock())
        embedder = CountedEmbedder(embedder, settings.embedding, usage_log)
    stories: Stories = import_module("bot.storage.stories").SqlStories(database)
    task = asyncio.create_task(
        index_stories(stories_by_character, embedder, stories, SystemClock())
    )
    try:
        yield StoryRetriever(embedder, stories, stories_by_character).retrieve
    finally:
        await cancel_and_wait([task])
        await embedder.close()


def stories_by_preset(
    presets: Mapping[str, Preset], stories: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return the stories of each preset whose prompt includes stories."""
    return {
        name: texts
        for name, texts in stories.items()
        if name in presets and story_queries_for(presets[name], "")
    }
