"""The plugs: which platforms, backends and stories the settings and the presets call for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib import import_module  # noqa: TID251 # the plug registry
from typing import Any

import structlog

from bot.backends.factory import make_backend, parameter_problems, prepare_model
from bot.embedders.registry import make_embedder
from bot.errors import BackendUnavailable, PresetError, SettingsError
from bot.importers.character_files import PresetWithStories
from bot.ports import Backend, PreloadingBackend
from bot.prompting.compose.instructions import story_queries_for
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.settings import Settings
from bot.storage.sql.database import Database
from bot.stories.index import index_stories
from bot.stories.retrieve import RetrieveStories, StoryRetriever, no_stories
from bot.templates.renderer import Renderer

_log = structlog.get_logger(__name__)


async def provide_model(
    settings: Settings, default: Preset, progress: Callable[[str], None]
) -> None:
    """Fetch the model that comes with Troupe if the default preset may have to run on it.

    Raises:
        SettingsError: it, or one of its fallbacks, is to run on another file, which is not there.
    """
    for preset in default.with_fallbacks:
        provider = settings.providers.get(preset.provider)
        if provider is not None:
            await prepare_model(preset.model, provider, settings.data_dir, progress)


async def warm(backends: Mapping[str, Backend], default: Preset) -> None:
    """Load what the first question will most likely need, while everything else starts."""
    backend = backends[default.provider]
    if isinstance(backend, PreloadingBackend):
        try:
            await backend.preload(default.model)
        except BackendUnavailable as error:  # whoever asks is told then
            _log.warning("model_not_warm", preset=default.name, reason=str(error))


@contextlib.asynccontextmanager
async def open_story_retriever(
    settings: Settings, roles: Mapping[str, PresetWithStories], database: Database
) -> AsyncIterator[RetrieveStories]:
    """Learn the roles' stories while the block runs; without any nothing is loaded for them.

    Raises:
        SettingsError: what the embedding's settings name is not there.
    """
    libraries = stories_of(roles)
    if not libraries:
        yield no_stories
        return
    embedder = make_embedder(settings.embedding, settings.data_dir)
    stories = await plug("bot.storage.sql.stories", "stories_in")(database)
    task = asyncio.create_task(index_stories(libraries, embedder, stories, SystemClock()))
    try:
        yield StoryRetriever(embedder, stories, libraries).find
    finally:
        await cancel_and_wait([task])
        await embedder.close()


def stories_of(roles: Mapping[str, PresetWithStories]) -> dict[str, Sequence[str]]:
    """The stories of each preset that has some, and a place in its persona for them."""
    return {
        name: role.stories
        for name, role in roles.items()
        if role.stories and story_queries_for(role.preset, "")
    }


def make_backends(
    settings: Settings, presets: Mapping[str, Preset], renderer: Renderer
) -> dict[str, Backend]:
    """One backend for each provider that a preset names.

    Raises:
        SettingsError: a preset's provider is not set up, or would not understand its parameters;
            the text names all of it.
    """
    backends: dict[str, Backend] = {}
    problems: list[str] = []
    for preset in presets.values():
        for name in _providers_of(preset):
            provider = settings.providers.get(name)
            if provider is None:
                raise SettingsError(
                    f"preset {preset.name!r} wants the provider {name!r}, which is not set up; "
                    f"set TROUPE_PROVIDERS__{name.upper()}__API_KEY or __BASE_URL"
                )
            if name not in backends:
                backends[name] = make_backend(name, provider, settings.data_dir, renderer)
        wrong = misunderstood(preset, settings)
        problems += [f"preset {preset.name!r}: {problem}" for problem in wrong]
    if problems:
        raise PresetError("\n".join(problems))
    return backends


def misunderstood(preset: Preset, settings: Settings) -> Sequence[str]:
    """What the preset's providers, as far as they are set up, do not take of its parameters."""
    names = dict.fromkeys(one.provider for one in preset.with_fallbacks)
    asked = [settings.providers[name] for name in names if name in settings.providers]
    found = (each for one in asked for each in parameter_problems(one, preset.parameters))
    return list(dict.fromkeys(found))


def _providers_of(preset: Preset) -> list[str]:
    summing = preset.summary.provider if preset.summary else None
    asked = [one.provider for one in preset.with_fallbacks]
    return [*asked, *([summing] if summing else [])]


def plug(module: str, name: str) -> Any:
    """Load a part only where it is used: a platform's library takes up to a second to import."""
    return getattr(import_module(module), name)
