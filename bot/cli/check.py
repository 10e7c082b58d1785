"""`troupe check`: test everything that is set up, and report problems with their fixes."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, TypeVar

import typer

from bot.backends.factory import make_backend, model_trials
from bot.backends.registry import backend_specs
from bot.chat.prompt import (
    Delta,
    Finish,
    FinishReason,
    Message,
    Prompt,
    QueuePosition,
    RateLimitWait,
    ReasoningDelta,
    Retraction,
)
from bot.cli.preset_files import find_template_problems
from bot.cli.text_io import print_line
from bot.cli.typer_apps import create_command_app
from bot.commands.access import describe_rules
from bot.embedders.registry import make_embedder
from bot.errors import (
    BackendUnavailable,
    PlatformFatal,
    PresetError,
    SettingsError,
    StoreError,
    TroupeError,
)
from bot.extras import import_extra
from bot.importers.character_files import read_character_folder
from bot.platforms.registry import create_account_setup, create_platform
from bot.platforms.spec import AccountSetup, BotAccount, PlatformContext, PlatformSpec
from bot.ports import Backend, Embedder, Platform
from bot.prompting.compose.compose import choose_template
from bot.prompting.presets.fields import preset_id
from bot.prompting.presets.files import PresetsInFolder
from bot.prompting.presets.preset import Preset
from bot.routing.decide import select_access_rules
from bot.routing.presets import INSTALLATION
from bot.runtime import plugins
from bot.runtime.clock import SystemClock
from bot.runtime.shipped_files import presets_folder
from bot.runtime.tasks import run_async
from bot.service.backends import (
    add_backends,
    describe_refused_presets,
    find_refused_presets,
    list_used_models,
)
from bot.service.resources import add_stored_keys, select_stories
from bot.settings import Settings, describe_unknown_variables, read_settings, wants_json_output
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.data_dir import create_data_dir
from bot.storage.database import open_database
from bot.telemetry.json_lines import JsonLines
from bot.telemetry.logs import log_only_warnings
from bot.templates.renderer import Renderer
from bot.tool_servers.factory import make_tool_servers

LineReporter = Callable[[str], None]

_CHECK_TIMEOUT_SECONDS = 5.0
"""The time limit for checks that take less than a second unless something is wrong."""
_TEST_QUESTION = "Answer with one word: ready?"
_CLOSE_TIMEOUT_SECONDS = 1.0
_RESOLVER_OPTIONS = "timeout:1 attempts:3"
"""Options for glibc; otherwise, looking up a name without a network delays the exit by 10 s."""

app = create_command_app()


@app.command()
def check(
    providers: Annotated[
        bool,
        typer.Option(
            "--providers",
            help="Also request one word from each model that presets use; this may cost money.",
        ),
    ] = False,
) -> None:
    """Test every setting, preset, and connection.

    Prints a line for each, with its problem and how to fix it. The exit code is 1 if there is any
    problem.
    """
    os.putenv("RES_OPTIONS", _RESOLVER_OPTIONS)
    json_output = JsonLines(sys.stdout, wants_json_output)
    with contextlib.redirect_stdout(json_output) as output, log_only_warnings():

        def report_line(line: str) -> None:
            output.level = "error" if line.startswith("WRONG") else "info"
            print_line(line)

        try:
            settings = run_async(add_stored_keys(read_settings()))
        except (SettingsError, StoreError) as error:
            for line in str(error).splitlines():
                report_line(f"WRONG  settings: {line}")
            report_line("fix the settings first; the other checks need them")
            raise typer.Exit(1) from None
        has_passed = run_async(check_everything(settings, report_line, asks_models=providers))
    raise typer.Exit(0 if has_passed else 1)


async def check_everything(
    settings: Settings, report_line: LineReporter, *, asks_models: bool = False
) -> bool:
    """Run all checks concurrently and report a line for each; return whether all succeeded."""
    problem_lines = [*plugins.load_errors.values(), *describe_unknown_variables()]
    for line in problem_lines:
        report_line(f"WRONG  settings: {line}")
    if not problem_lines:
        report_line("ok     settings")
    has_passed = not problem_lines
    async with Renderer() as renderer, asyncio.TaskGroup() as group:
        tasks = [
            (name, group.create_task(_run_check(check, timeout)))
            for name, check, timeout in _list_checks(settings, renderer, asks_models=asks_models)
        ]
        for name, task in tasks:
            result, problems = await task
            for line in problems:
                report_line(f"WRONG  {name}: {line}")
            if problems:
                has_passed = False
            else:
                report_line(f"ok     {name}: {result}")
    return has_passed


async def _run_check(result: Awaitable[str], seconds: float | None) -> tuple[str, Sequence[str]]:
    """Return a check's result and no problems, or "" and a line for each problem."""
    try:
        async with asyncio.timeout(seconds):
            return await result, ()
    except TimeoutError:
        hint = "check that it is running and that the network works"
        return "", [f"no answer within {seconds:g} s; {hint}"]
    except TroupeError as error:
        return "", str(error).splitlines()


def _list_checks(
    settings: Settings, renderer: Renderer, *, asks_models: bool
) -> Iterator[tuple[str, Awaitable[str], float | None]]:
    """Yield each check's name, coroutine, and timeout (None if it limits its own time)."""
    folder_presets = _read_presets_if_valid(settings)
    presets = folder_presets.presets
    yield "presets", _test_presets(settings, renderer), _CHECK_TIMEOUT_SECONDS
    yield "database", _test_database(settings), _CHECK_TIMEOUT_SECONDS
    yield "access", _describe_access(settings), _CHECK_TIMEOUT_SECONDS
    yield "signals", _test_redis(settings), _CHECK_TIMEOUT_SECONDS
    for spec in settings.configured_platforms:
        yield spec.kind, _test_platform(spec, settings), _CHECK_TIMEOUT_SECONDS
    if select_stories(presets, folder_presets.stories):
        yield "embedding", _test_embedder(settings), _CHECK_TIMEOUT_SECONDS
    for name in settings.mcp_servers:
        yield f"MCP server {name}", _test_tool_server(name, settings), None
    for name, models in _list_models_by_provider(presets, settings).items():
        yield (
            f"provider {name}",
            _test_provider(name, models, settings, renderer),
            _CHECK_TIMEOUT_SECONDS,
        )
        for model in models if asks_models else ():
            limited_preset = _find_limited_preset(presets, name, model)
            answer = _ask_model(name, model, limited_preset, settings, renderer)
            yield f"answer of {name}/{model}", answer, None
    for each in presets.values():
        if each.calls_tools and each.provider in settings.providers:
            yield (
                f"tools of preset {each.name}",
                _test_tool_format(each, settings, renderer),
                _CHECK_TIMEOUT_SECONDS,
            )
    trial_lock = asyncio.Lock()  # two models at once would slow each other down
    for model, trial in model_trials(settings.providers.values(), settings.data_dir, renderer):
        yield f"model {model}", _run_trial_alone(trial, trial_lock), None


def _read_presets_if_valid(settings: Settings) -> PresetsInFolder:
    try:
        return read_character_folder(presets_folder(settings.presets_dir))
    except PresetError:  # the check "presets" reports the problem
        return PresetsInFolder()


def _list_models_by_provider(
    presets: Mapping[str, Preset], settings: Settings
) -> Mapping[str, Sequence[str]]:
    """Return the models that presets use, by provider; without presets, the configured models."""
    if not presets:
        builtin_names = {
            name for spec in backend_specs() for name in spec.providers_without_settings
        }
        return {name: ["default"] for name in settings.providers if name not in builtin_names}
    models_by_provider: dict[str, list[str]] = {}
    for name, model in (pair for each in presets.values() for pair in list_used_models(each)):
        if name in settings.providers and model not in models_by_provider.setdefault(name, []):
            models_by_provider[name].append(model)
    return models_by_provider


async def _test_presets(settings: Settings, renderer: Renderer) -> str:
    folder = presets_folder(settings.presets_dir)
    content = read_character_folder(folder)
    refusals = find_refused_presets(content.presets.values(), settings)
    problems = [*content.problems.values(), *describe_refused_presets(refusals)]
    usable_presets = {name: one for name, one in content.presets.items() if name not in refusals}
    add_backends({}, settings, usable_presets.values(), renderer)
    for preset in usable_presets.values():
        problems += await find_template_problems(preset, renderer)
    default_name = ""
    try:
        default_name = content.find(settings.default_preset).name
    except PresetError as error:
        if preset_id(settings.default_preset) not in map(preset_id, content.disabled_reasons):
            problems.append(f"TROUPE_DEFAULT_PRESET: {error}")
    if problems:
        raise PresetError("\n".join(problems))
    return f"{len(usable_presets)} in {folder}; {default_name} is the default"


async def _test_database(settings: Settings) -> str:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        kind = "SQLite" if database.is_sqlite else "PostgreSQL"
        return f"{kind}, new texts are encrypted" if settings.encrypt_texts else kind


async def _describe_access(settings: Settings) -> str:
    """Return the rules on who may use the bot everywhere, from the settings and `/access`."""
    fixed_rules, chat_rules = settings.access.fixed_rules, dict[str, str]()
    with contextlib.suppress(StoreError):  # the check "database" reports the problem
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            chat_settings = SqlChatSettings(database, SystemClock())
            settings_by_scope = await chat_settings.get_scopes([INSTALLATION])
            chat_rules = select_access_rules(settings_by_scope.get(INSTALLATION, {}))
    chat_only_rules = {name: value for name, value in chat_rules.items() if name not in fixed_rules}
    rule_texts = [
        *(f"{one} (TROUPE_ACCESS)" for one in describe_rules(fixed_rules)),
        *(f"{one} (/access)" for one in describe_rules(chat_only_rules)),
    ]
    return ", ".join(rule_texts) or "everyone, unless a chat's rules say otherwise (/access show)"


async def _test_redis(settings: Settings) -> str:
    if settings.redis_url is None:
        return "only within this process; set TROUPE_REDIS_URL if several processes share the work"
    redis_signals = import_extra("bot.storage.redis_signals", "TROUPE_REDIS_URL")
    await redis_signals.check_redis(settings.redis_url.get_secret_value())
    return "Redis answers"


async def _test_platform(spec: PlatformSpec, settings: Settings) -> str:
    bot_settings = settings.platform_settings(spec)
    account_setup = None if bot_settings is None else create_account_setup(spec, bot_settings)
    if account_setup is not None:  # needs no platform library, which takes seconds to import
        async with _closing(account_setup):
            account = await account_setup.inspect()
        if not account.can_receive:
            raise PlatformFatal(describe_account(account))
        return describe_account(account)
    async with _closing(create_platform(spec, bot_settings, PlatformContext())) as platform:
        return await platform.check()


def describe_account(account: BotAccount) -> str:
    return "; ".join((f"{account.name}, {account.link_title}: {account.link}", *account.notes))


async def _test_embedder(settings: Settings) -> str:
    async with _closing(make_embedder(settings.embedding, settings.data_dir)) as embedder:
        return await embedder.check()


async def _test_tool_server(name: str, settings: Settings) -> str:
    data_dir = create_data_dir(settings.data_dir)
    server = make_tool_servers({name: settings.mcp_servers[name]}, data_dir)[name]
    tool_specs, omitted_tools = await server.check(), server.omitted_tools
    tools_text = f"{len(tool_specs)} tools: {', '.join(one.name for one in tool_specs)}"
    if not omitted_tools:
        return tools_text
    omitted_names = ", ".join(omitted_tools)
    setting_name = f"TROUPE_MCP_SERVERS__{name.upper()}__TOOLS"
    return f"{tools_text}; other tools, offered only if {setting_name} lists them: {omitted_names}"


async def _test_provider(
    name: str, models: Sequence[str], settings: Settings, renderer: Renderer
) -> str:
    async with _open_backend(name, settings, renderer) as backend:
        return await backend.check_models(models)


async def _test_tool_format(preset: Preset, settings: Settings, renderer: Renderer) -> str:
    async with _open_backend(preset.provider, settings, renderer) as backend:
        can_offer_tools = await backend.calls_tools(preset.model, choose_template(preset))
    if not can_offer_tools:
        raise SettingsError(
            f"the template of {preset.model!r} has no tool call format that Troupe knows, so the "
            "model answers without tools; use a Qwen, Llama 3.1, Mistral, or Hermes model, or "
            "remove tools and mcp_servers"
        )
    return "offered"


def _find_limited_preset(presets: Mapping[str, Preset], provider: str, model: str) -> Preset | None:
    """Return the preset with the lowest output limit for a model, or None if none has a limit."""
    candidates = [
        (limit, one.name, one)
        for one in presets.values()
        if (provider, model) in list_used_models(one) and (limit := one.output_limit) is not None
    ]
    return min(candidates)[-1] if candidates else None


async def _ask_model(
    name: str, model: str, limited_preset: Preset | None, settings: Settings, renderer: Renderer
) -> str:
    """Ask a model for one word; return how long that took, and the tokens used."""
    limit = None if limited_preset is None else limited_preset.output_limit
    prompt = Prompt((Message("user", _TEST_QUESTION),), model, "check", max_output_tokens=limit)
    started_at, finish_event = time.monotonic(), Finish(FinishReason.STOP)
    answer_text, has_thoughts = "", False
    async with (
        _open_backend(name, settings, renderer) as backend,
        aclosing(backend.generate(prompt)) as events,
    ):
        async for event in events:
            match event:
                case Delta():
                    answer_text += event.text
                case ReasoningDelta():
                    has_thoughts = True
                case Retraction():
                    answer_text, has_thoughts = "", True
                case Finish():
                    finish_event = event
                case QueuePosition() | RateLimitWait():
                    pass
    usage = finish_event.usage
    if not answer_text.strip():
        raise BackendUnavailable(
            _explain_missing_answer(limited_preset)
            if has_thoughts and finish_event.reason is FinishReason.LENGTH
            else "it sent an empty answer"
        )
    usage_text = "it reports no usage, so costs are estimated"
    if usage.output_tokens:
        usage_text = f"{usage.prompt_tokens} tokens read, {usage.output_tokens} written"
    return f"after {time.monotonic() - started_at:.1f} s; {usage_text}"


def _explain_missing_answer(limited_preset: Preset | None) -> str:
    limit_text, remedy = "", "give it a larger context"
    if limited_preset is not None:
        limit_text = f" {limited_preset.output_limit}"
        remedy = f"remove or raise max_output_tokens in preset {limited_preset.name!r}"
    return (
        f"it spent all its{limit_text} output tokens on thinking and did not answer; {remedy}, or "
        "choose a model that does not think"
    )


async def _run_trial_alone(trial: Awaitable[str], trial_lock: asyncio.Lock) -> str:
    async with trial_lock:
        return await trial


_Closable = TypeVar("_Closable", AccountSetup, Backend, Embedder, Platform)


@contextlib.asynccontextmanager
async def _closing(resource: _Closable) -> AsyncIterator[_Closable]:
    """Close an object after the block, without waiting long, because the process exits anyway."""
    try:
        yield resource
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                await resource.close()


def _open_backend(
    name: str, settings: Settings, renderer: Renderer
) -> contextlib.AbstractAsyncContextManager[Backend]:
    return _closing(make_backend(name, settings.providers[name], settings.data_dir, renderer))
