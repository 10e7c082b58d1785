"""Look at everything an operator set up, and say what is wrong and how to mend it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping

from bot.backends.model_files import store as model_store
from bot.chat.prompt import Message
from bot.cli.bench_model import measure
from bot.embedders.registry import make_embedder
from bot.errors import PresetError, TemplateError, TroupeError
from bot.importers.character_files import load_complete_presets, load_presets_with_stories
from bot.platforms.registry import make_platform
from bot.platforms.spec import PlatformContext
from bot.ports import Backend, Platform
from bot.prompting.compose.compose import template_of
from bot.prompting.presets.files import find_preset
from bot.prompting.presets.preset import Preset
from bot.service.wiring import make_backends, presets_folder, stories_of
from bot.settings import Settings, unknown_variables
from bot.storage.coordination.redis import open_coordinator
from bot.storage.data_dir import create_data_dir
from bot.storage.sql.database import open_database
from bot.templates.renderer import ModelTemplate, Renderer

Tell = Callable[[str], None]


async def check(settings: Settings, tell: Tell) -> bool:
    """Tell one line for each thing; True when all of them are well."""
    results = [_no_typos(tell)]

    async def look(name: str, at: Awaitable[str]) -> bool:
        try:
            tell(f"ok     {name}: {await at}")
            results.append(True)
        except TroupeError as error:
            for line in str(error).splitlines():
                tell(f"WRONG  {name}: {line}")
            results.append(False)
        return results[-1]

    presets_are_well = await look("presets", _presets(settings))
    await look("database", _database(settings))
    await look("coordinator", _coordinator(settings))
    for spec in settings.configured_platforms:
        platform = make_platform(spec, settings.platform(spec), PlatformContext())
        await look(platform.name, _platform(platform))
    if presets_are_well:  # without them nobody knows what is wanted
        roles = load_presets_with_stories(presets_folder(settings))
        presets = {name: role.preset for name, role in roles.items()}
        if stories_of(roles):
            await look("embedding", _embedding(settings))
        async with Renderer() as renderer:
            for name, backend in make_backends(settings, presets, renderer).items():
                await look(f"provider {name}", _backend(backend))
            for model, measured in _models(settings, renderer):
                await look(f"model {model}", measured)
    return all(results)


def _no_typos(tell: Tell) -> bool:
    unknown = unknown_variables()
    for name, nearest in unknown.items():
        hint = f"; did you mean {nearest}?" if nearest else ""
        tell(f"WRONG  settings: {name} is no setting of Troupe{hint}")
    if not unknown:
        tell("ok     settings")
    return not unknown


async def _presets(settings: Settings) -> str:
    presets = load_complete_presets(presets_folder(settings))
    default = find_preset(presets, settings.default_preset)
    async with Renderer() as renderer:
        make_backends(settings, presets, renderer)
        await _try_templates(presets, renderer)
    found = f"{len(presets)} in {presets_folder(settings)}; {default.name} is the default"
    idle = [
        f"{preset.name}'s {key}" for preset in presets.values() for key in preset.without_effect
    ]
    return f"{found}; nothing comes yet of {', '.join(idle)}" if idle else found


async def _try_templates(presets: Mapping[str, Preset], renderer: Renderer) -> None:
    """Raise PresetError for a template that fails; a model's own is not looked at."""
    for preset in presets.values():
        choice = template_of(preset)
        if choice.source or choice.named or choice.strings:
            try:
                await renderer.render([Message("user", "Hello")], choice, ModelTemplate())
            except TemplateError as error:
                raise PresetError(f"preset {preset.name!r}: its template: {error}") from None


def _models(settings: Settings, renderer: Renderer) -> Iterator[tuple[str, Awaitable[str]]]:
    """The installed models, each with its trial on this machine."""
    own = [each for each in settings.providers.values() if each.kind == "llama_cpp"]
    for model in model_store.list_models(settings.data_dir) if own else ():
        yield model.name, measure(model.path, own[0], settings.data_dir, renderer)


async def _database(settings: Settings) -> str:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url) as database:
        return "SQLite" if database.is_sqlite else "PostgreSQL"


async def _coordinator(settings: Settings) -> str:
    if settings.redis_url is None:
        return "an embedded Valkey, started with the service"
    async with open_coordinator(settings.redis_url.get_secret_value()) as coordinator:
        await coordinator.release_expired("check")
    return "Redis answers"


async def _platform(platform: Platform) -> str:
    try:
        return await platform.check()
    finally:
        await platform.close()


async def _embedding(settings: Settings) -> str:
    embedder = make_embedder(settings.embedding, settings.data_dir)
    try:
        return await embedder.check()
    finally:
        await embedder.close()


async def _backend(backend: Backend) -> str:
    try:
        return await backend.check()
    finally:
        await backend.close()
