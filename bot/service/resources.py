"""Open the service's resources in order, and close them in reverse order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import field

import structlog
from pydantic import SecretStr

from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.backends.factory import prepare_model
from bot.embedders.registry import make_embedder
from bot.errors import BackendUnavailable, SettingsError
from bot.extras import import_extra
from bot.importers.character_files import read_character_folder
from bot.memory.stories import RetrieveStories, StoryRetriever, index_stories
from bot.platforms.spec import PlatformSpec
from bot.ports import Backend, ChatSettings, Embedder, RateLimits, Signals, Stories, ToolServer
from bot.prompting.compose.instructions import find_story_queries
from bot.prompting.presets.fields import preset_id
from bot.prompting.presets.files import PresetsInFolder, find_preset, to_version
from bot.prompting.presets.preset import Preset
from bot.prompting.text.preset_folder import FileStamps, read_file_stamps
from bot.routing.presets import PresetResolver
from bot.runtime import plugins
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessSignals
from bot.runtime.shipped_files import presets_folder
from bot.runtime.tasks import cancel_and_wait
from bot.service.backends import add_backends, find_refused_presets
from bot.service.options import Role, RunOptions, replace_model
from bot.settings import Settings
from bot.storage.chat_settings import CachedChatSettings, SqlChatSettings
from bot.storage.data_dir import DataDirUse, lock_data_dir
from bot.storage.database import Database, open_database, open_without_migrating, read_revision
from bot.storage.leases import read_installation_id, resolve_bot_id
from bot.storage.presets import PresetVersions
from bot.storage.provider_keys import ProviderKeys, StoredKey
from bot.storage.session_windows import SharedSessionWindows
from bot.templates.renderer import Renderer
from bot.tool_servers.factory import open_tool_servers
from bot.value_class import value_class

_log = structlog.get_logger(__name__)


@value_class
class ModelResources:
    """The open components that generate answers: backends, tool servers and retrievers."""

    renderer: Renderer
    backends: dict[str, Backend]
    """Backends by provider; presets published later may add some."""
    retrieve_stories: RetrieveStories | None = None
    """Retrieves stories; None if no preset has stories."""
    memory_embedder: Embedder | None = None
    """Embeds texts to find memories by meaning; None if not needed or not installed."""
    tool_servers: Mapping[str, ToolServer] = field(default_factory=dict)
    """Tool servers by the name that presets use for them."""
    id_hashing_key: bytes = b""
    """The key with which backends hash conversation keys; the same in all processes."""


async def _close_backends(backends: Mapping[str, Backend]) -> None:
    async with contextlib.AsyncExitStack() as stack:  # closes all, even if one fails
        for backend in backends.values():
            stack.push_async_callback(backend.close)


async def prepare_models(
    settings: Settings, default_preset: Preset, report: Callable[[str], None]
) -> None:
    """Check or download the local models of the default preset; raises `SettingsError`."""
    for one in default_preset.self_and_fallbacks:
        provider = settings.providers.get(one.provider)
        if provider is not None:
            await prepare_model(one.provider, one.model, provider, settings.data_dir, report)


async def _preload_model(backend: Backend, default_preset: Preset) -> None:
    """Load the default preset's model while other components start."""
    try:
        await backend.preload(default_preset.model)
    except BackendUnavailable as error:  # the first message will report the problem
        _log.warning("model_not_preloaded", preset=default_preset.name, reason=str(error))


@contextlib.asynccontextmanager
async def open_story_retriever(
    embedder: Embedder, stories_by_character: Mapping[str, Sequence[str]], database: Database
) -> AsyncIterator[RetrieveStories]:
    """Index presets' stories in the background; yield a retriever. Raises `SettingsError`."""
    stories_module = import_extra("bot.storage.stories", "a preset with stories")
    stories: Stories = stories_module.SqlStories(database)
    indexing_coroutine = index_stories(stories_by_character, embedder, stories, SystemClock())
    indexing_task = asyncio.create_task(indexing_coroutine)
    try:
        yield StoryRetriever(embedder, stories, stories_by_character).retrieve
    finally:
        await cancel_and_wait([indexing_task])


def _make_embedder(settings: Settings, *, has_stories: bool) -> Embedder | None:
    """Load the embedder. On failure, raise `SettingsError` if stories need it, else return None."""
    try:
        return make_embedder(settings.embedding, settings.data_dir)
    except SettingsError as error:
        if has_stories:
            raise
        _log.warning("memories_ranked_by_words", reason=str(error))
        return None


def select_stories(
    presets: Mapping[str, Preset], stories: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return, by preset name, the stories of the presets whose prompts include stories."""
    return {
        name: texts
        for name, texts in stories.items()
        if name in presets and find_story_queries(presets[name], "")
    }


_MAX_SETTING_AGE_SECONDS = 3.0  # if signals of changes may be lost


@value_class
class Resources:
    """Resources that are opened before the container is created."""

    database: Database
    bot_ids: Mapping[str, str]
    """Each platform's `Address.bot_id`, by platform name."""
    signals: Signals
    chat_settings: ChatSettings
    resolver: PresetResolver
    models: ModelResources | None
    """None if this process neither generates nor shows answers."""
    shared_turn_windows: SharedSessionWindows | None = None
    """Session windows shared through Redis; None if Redis is not configured."""
    rate_limits: RateLimits | None = None
    """Rate limits shared by all processes; None if each process counts separately."""
    folder_presets: PresetsInFolder = field(default_factory=PresetsInFolder)
    """The content of the presets folder, as read at startup."""
    preset_file_stamps: FileStamps = field(default_factory=dict)
    """Stamps of the presets folder's files, taken before reading them, to detect changes."""


@contextlib.asynccontextmanager
async def open_resources(
    settings: Settings,
    specs: Sequence[PlatformSpec],
    report: Callable[[str], None],
    options: RunOptions,
) -> AsyncIterator[Resources]:
    """Open all configured resources; raises `SettingsError` and `StoreError`."""
    preset_file_stamps = read_file_stamps(presets_folder(settings.presets_dir))
    folder_presets = read_character_folder(presets_folder(settings.presets_dir))
    presets, disabled_presets = _select_usable_presets(settings, folder_presets, options, report)
    for problem in plugins.load_errors.values():
        report(problem)
    async with contextlib.AsyncExitStack() as stack:
        dir_use = find_data_dir_use(specs)
        is_dir_shared = shares_data_dir(settings, dir_use, options)
        if options.answers_messages:
            stack.enter_context(lock_data_dir(settings.data_dir, dir_use, is_shared=is_dir_shared))
        database_context = open_database(settings.sqlalchemy_url, settings.text_encryption)
        database = await stack.enter_async_context(database_context)
        bot_ids = await _resolve_bot_ids(settings, specs, database)
        coordination_context = _open_coordination(settings, database)
        signals, shared_windows, rate_limits = await stack.enter_async_context(coordination_context)
        has_redis = settings.redis_url is not None
        chat_settings = make_chat_settings(database, signals, has_remote_signals=has_redis)
        versions = await PresetVersions(database, SystemClock()).save(
            [to_version(preset) for preset in folder_presets.presets.values()]
        )
        default_name = settings.default_preset
        if options.preset is not None:
            default_name = find_preset(presets, options.preset, disabled_presets).name
        resolver = PresetResolver(presets, default_name, chat_settings, versions, disabled_presets)
        models_context = _open_models(
            settings,
            presets,
            folder_presets.stories,
            database,
            resolver.default_preset,
            report,
            options,
        )
        models = await stack.enter_async_context(models_context)
        yield Resources(
            database,
            bot_ids,
            signals,
            chat_settings,
            resolver,
            models,
            shared_windows,
            rate_limits,
            folder_presets,
            preset_file_stamps,
        )


def _select_usable_presets(
    settings: Settings, files: PresetsInFolder, options: RunOptions, report: Callable[[str], None]
) -> tuple[Mapping[str, Preset], Mapping[str, str]]:
    """Return the usable presets, and the reasons why other presets are disabled, by name."""
    presets = replace_model(files.presets, options.model, settings)
    provider_roles = options.roles & {Role.WORKER, Role.CONSOLE}
    refusals = find_refused_presets(presets.values(), settings) if provider_roles else {}
    disabled_reasons = {**files.disabled_reasons, **refusals}
    default_name = options.preset or settings.default_preset
    for name, reason in disabled_reasons.items():
        if preset_id(name) != preset_id(default_name):  # if it is disabled, fail later
            report(f"the preset {name} is disabled: {reason}")
    return {name: one for name, one in presets.items() if name not in refusals}, disabled_reasons


@contextlib.asynccontextmanager
async def _open_models(
    settings: Settings,
    presets: Mapping[str, Preset],
    stories: Mapping[str, Sequence[str]],
    database: Database,
    default: Preset,
    report: Callable[[str], None],
    options: RunOptions,
) -> AsyncIterator[ModelResources | None]:
    """Open the components that generate answers; yield None unless this is a worker or console."""
    is_worker = Role.WORKER in options.roles
    if not is_worker and Role.CONSOLE not in options.roles:
        yield None
        return
    if is_worker and options.answers_messages:
        await prepare_models(settings, default, report)
    async with contextlib.AsyncExitStack() as stack:
        renderer = await stack.enter_async_context(Renderer())
        id_hashing_key = (await read_installation_id(database)).encode()
        backends: dict[str, Backend] = {}
        add_backends(backends, settings, presets.values(), renderer, id_hashing_key)
        stack.push_async_callback(_close_backends, backends)
        texts = select_stories(presets, stories) if is_worker else {}
        uses_memory = is_worker and any(one.memory for one in presets.values())
        embedder = (
            _make_embedder(settings, has_stories=bool(texts)) if texts or uses_memory else None
        )
        retrieve_stories = None
        if embedder is not None:
            stack.push_async_callback(embedder.close)
            if texts:
                retriever_context = open_story_retriever(embedder, texts, database)
                retrieve_stories = await stack.enter_async_context(retriever_context)
        server_settings = settings.mcp_servers if is_worker else {}  # later presets may use them
        tool_servers_context = open_tool_servers(server_settings, settings.data_dir)
        tool_servers = await stack.enter_async_context(tool_servers_context)
        if is_worker and options.answers_messages:
            preload_task = asyncio.create_task(_preload_model(backends[default.provider], default))
            stack.push_async_callback(cancel_and_wait, [preload_task])
        memory_ranker = embedder if uses_memory else None
        yield ModelResources(
            renderer, backends, retrieve_stories, memory_ranker, tool_servers, id_hashing_key
        )


def shares_data_dir(settings: Settings, dir_use: DataDirUse, options: RunOptions) -> bool:
    """Return whether other processes may use the data directory, too."""
    has_own_database = settings.sqlalchemy_url.startswith("sqlite")
    if options.shares_work and has_own_database:
        raise SettingsError(
            "--role divides the work among processes, which SQLite does not support: set"
            " TROUPE_DATABASE_URL to postgresql+asyncpg://user:password@host/name, or run without"
            " --role"
        )
    return not has_own_database and dir_use is DataDirUse.SERVICE


def make_chat_settings(
    database: Database, signals: Signals, *, has_remote_signals: bool
) -> ChatSettings:
    """Return the chat settings; cache them unless changes by other processes may go unnoticed."""
    clock = SystemClock()
    settings = SqlChatSettings(database, clock)
    if not (database.is_sqlite or has_remote_signals):
        return settings
    max_age_seconds = None if database.is_sqlite else _MAX_SETTING_AGE_SECONDS
    return CachedChatSettings(settings, signals, clock, max_age_seconds)


def find_data_dir_use(specs: Sequence[PlatformSpec]) -> DataDirUse:
    """Return how a process with these platforms uses the data directory."""
    runs_in_terminal = all(spec.uses_terminal or spec.is_companion for spec in specs)
    return DataDirUse.TERMINAL if runs_in_terminal else DataDirUse.SERVICE


async def _resolve_bot_ids(
    settings: Settings, specs: Sequence[PlatformSpec], database: Database
) -> Mapping[str, str]:
    platform_settings = {spec.kind: settings.platform_settings(spec) for spec in specs}
    return {
        kind: await resolve_bot_id(database, kind, platform.bot_account)
        for kind, platform in platform_settings.items()
        if platform is not None and platform.bot_account
    }


@contextlib.asynccontextmanager
async def _open_coordination(
    settings: Settings, database: Database
) -> AsyncIterator[tuple[Signals, SharedSessionWindows | None, RateLimits | None]]:
    """Open Redis signals, turn cache and rate limits; without Redis, in-process signals only."""
    if settings.redis_url is None:
        yield InProcessSignals(), None, None
        return
    url = settings.redis_url.get_secret_value()
    prefix = f"troupe:{await read_installation_id(database)}:"
    clock = SystemClock()
    signals_module, windows_module, limits_module = (
        import_extra(f"bot.storage.{name}", "TROUPE_REDIS_URL")
        for name in ("redis_signals", "redis_session_windows", "redis_rate_limits")
    )
    async with (
        signals_module.open_signals(url) as signals,
        windows_module.open_session_windows(url, prefix, database.codec, clock) as windows,
        limits_module.open_rate_limits(url, prefix, clock) as limits,
    ):
        yield signals, windows, limits


async def add_stored_keys(settings: Settings) -> Settings:
    """Return the settings with stored API keys added; raises `SettingsError`, `StoreError`."""
    providers_with_keys = {
        name: provider
        for name, provider in settings.providers.items()
        if isinstance(provider, HttpProviderSettings) and provider.stored_keys
    }
    if not providers_with_keys:
        return settings
    fernets_module = import_extra("bot.storage.fernets", "a stored key")
    cipher = fernets_module.KeyCipher(settings.all_encryption_keys)
    stored_keys: Sequence[StoredKey] = ()
    if await read_revision(settings.sqlalchemy_url) is not None:
        async with open_without_migrating(settings.sqlalchemy_url) as database:
            stored_keys = await ProviderKeys(database, SystemClock()).list_all()
    providers = dict(settings.providers)
    for name, provider in providers_with_keys.items():
        encrypted_keys = [one.token for one in stored_keys if one.provider == name]
        api_keys = [SecretStr(cipher.decrypt(name, token)) for token in encrypted_keys]
        if not api_keys:
            raise SettingsError(
                f"provider {name!r} has no stored key; run `troupe keys add {name}`, or unset"
                f" TROUPE_PROVIDERS__{name.upper()}__STORED_KEYS"
            )
        providers[name] = provider.model_copy(update={"api_keys": (*provider.api_keys, *api_keys)})
    return settings.model_copy(update={"providers": providers})
