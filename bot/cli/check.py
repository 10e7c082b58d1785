"""`troupe check`: test everything an operator set up; say what is wrong and how to fix it."""

from collections.abc import Awaitable, Callable, Mapping

import typer
import uvloop

from bot.backends.factory import model_trials
from bot.chat.prompt import Message
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.embedders.registry import make_embedder
from bot.errors import PresetError, TemplateError, TroupeError
from bot.importers.character_files import load_complete_presets, load_presets_with_stories
from bot.platforms.registry import make_platform
from bot.platforms.spec import PlatformContext
from bot.ports import Backend, Platform
from bot.prompting.compose.compose import template_of
from bot.prompting.presets.files import find_preset
from bot.prompting.presets.preset import Preset
from bot.runtime.shipped_files import presets_folder
from bot.service.backends import make_backends
from bot.service.resources import EMBEDDED_REDIS, stories_by_preset
from bot.settings import Settings, find_unknown_variables, read_settings
from bot.storage.coordination.redis_signals import check_redis
from bot.storage.data_dir import create_data_dir
from bot.storage.sql.database import open_database
from bot.templates.renderer import ModelTemplate, Renderer

Report = Callable[[str], None]
"""Take one line of the result."""

app = command_app()


@app.command()
def check() -> None:
    """Test every setting, preset and connection.

    Prints a line for each, with what is wrong and how to fix it. The exit code is 1 if anything
    is wrong.
    """
    settings = read_settings()
    raise typer.Exit(0 if uvloop.run(check_everything(settings, print_line)) else 1)


async def check_everything(settings: Settings, report: Report) -> bool:
    """Report one line for each thing; return True if nothing is wrong."""
    results = [_check_variable_names(report)]

    async def test(name: str, subject: Awaitable[str]) -> bool:
        try:
            report(f"ok     {name}: {await subject}")
            results.append(True)
        except TroupeError as error:
            for line in str(error).splitlines():
                report(f"WRONG  {name}: {line}")
            results.append(False)
        return results[-1]

    presets_are_valid = await test("presets", _test_presets(settings))
    await test("database", _test_database(settings))
    await test("signals", _test_signals(settings))
    for spec in settings.configured_platforms:
        platform = make_platform(spec, settings.platform(spec), PlatformContext())
        await test(platform.name, _test_platform(platform))
    if presets_are_valid:  # without them nobody knows which providers are used
        roles = load_presets_with_stories(presets_folder(settings.presets_dir))
        presets = {name: role.preset for name, role in roles.items()}
        if stories_by_preset(roles):
            await test("embedding", _test_embedder(settings))
        async with Renderer() as renderer:
            for name, backend in make_backends(settings, presets, renderer).items():
                await test(f"provider {name}", _test_backend(backend))
            providers = settings.providers.values()
            for model, trial in model_trials(providers, settings.data_dir, renderer):
                await test(f"model {model}", trial)
    return all(results)


def _check_variable_names(report: Report) -> bool:
    unknown = find_unknown_variables()
    for name, nearest in unknown.items():
        hint = f"; did you mean {nearest}?" if nearest else ""
        report(f"WRONG  settings: {name} is not a setting of Troupe{hint}")
    if not unknown:
        report("ok     settings")
    return not unknown


async def _test_presets(settings: Settings) -> str:
    presets = load_complete_presets(presets_folder(settings.presets_dir))
    default = find_preset(presets, settings.default_preset)
    async with Renderer() as renderer:
        make_backends(settings, presets, renderer)
        await _render_templates(presets, renderer)
    found = (
        f"{len(presets)} in {presets_folder(settings.presets_dir)}; {default.name} is the default"
    )
    unsupported = [
        f"{preset.name}'s {key}" for preset in presets.values() for key in preset.unsupported_keys
    ]
    return f"{found}; not supported yet: {', '.join(unsupported)}" if unsupported else found


async def _render_templates(presets: Mapping[str, Preset], renderer: Renderer) -> None:
    """Raise `PresetError` for a template that fails; those in a GGUF are not tested."""
    for preset in presets.values():
        choice = template_of(preset)
        if choice.source or choice.named or choice.strings:
            try:
                await renderer.render([Message("user", "Hello")], choice, ModelTemplate())
            except TemplateError as error:
                raise PresetError(f"preset {preset.name!r}: its template: {error}") from None


async def _test_database(settings: Settings) -> str:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url) as database:
        return "SQLite" if database.is_sqlite else "PostgreSQL"


async def _test_signals(settings: Settings) -> str:
    if settings.redis_url is None:
        return "in this process; TROUPE_REDIS_URL lets several processes wake each other"
    if settings.redis_url.get_secret_value() == EMBEDDED_REDIS:
        return "the bundled Valkey, started with the service"
    await check_redis(settings.redis_url.get_secret_value())
    return "Redis answers"


async def _test_platform(platform: Platform) -> str:
    try:
        return await platform.check()
    finally:
        await platform.close()


async def _test_embedder(settings: Settings) -> str:
    embedder = make_embedder(settings.embedding, settings.data_dir)
    try:
        return await embedder.check()
    finally:
        await embedder.close()


async def _test_backend(backend: Backend) -> str:
    try:
        return await backend.check()
    finally:
        await backend.close()
