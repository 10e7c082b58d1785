"""`troupe init`: set up a model, Telegram, and Discord by questions or flags; write `.env`."""

import asyncio
import difflib
import io
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from getpass import getpass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import segno
import typer

from bot.backends.llama_cpp.hardware import count_free_bytes
from bot.backends.llama_cpp.settings import find_local_settings
from bot.backends.model_files import hub
from bot.backends.model_files.gguf import read_metadata
from bot.backends.openai_compatible.services import (
    AZURE_PROVIDER,
    KEYLESS_SERVICES,
    read_azure_address,
)
from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import create_command_app
from bot.errors import SettingsError, TroupeError, UserError
from bot.platforms.spec import PlatformSpec
from bot.runtime.operating_system import IS_WINDOWS
from bot.settings import Settings, find_environment_overrides, read_settings
from bot.setup import (
    ADMIN_CODE_TIMEOUT_SECONDS,
    INCLUDED_MODEL,
    SERVICE_TITLES,
    SUGGESTED_MODELS,
    BotStep,
    ModelChoice,
    bot_variables,
    find_local_services,
    find_service,
    generate_admin_code,
    inspect_account,
    list_models,
    open_account_setup,
    platforms_using_tokens,
    read_variable_names,
    token_directions,
    try_model,
    write_variables,
)
from bot.telemetry.logs import log_only_warnings

T = TypeVar("T")
_INTERRUPTED_EXIT_CODE = 130
_MAX_LISTED_MODELS = 15

app = create_command_app()


@app.command()
def init(
    telegram_token: Annotated[
        str | None, typer.Option(help="The token of a bot on Telegram, from @BotFather.")
    ] = None,
    discord_token: Annotated[
        str | None, typer.Option(help="The token of a bot on Discord, from the developer portal.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="openai, anthropic, ollama, ..., or included (the small model)."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The key for the provider.")] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The address of a service with OpenAI's API.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The name of the provider's model.")] = None,
    model_file: Annotated[Path | None, typer.Option(help="A GGUF file on this machine.")] = None,
    pull: Annotated[
        str | None, typer.Option(help="A model to download: OWNER/NAME:FILE on a hub.")
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option(help="An admin: telegram:<id> or discord:<id>.")
    ] = None,
    first_admin: Annotated[
        str | None,
        typer.Option(help="Where the first admin sends the bot a code: telegram or discord."),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Check tokens, keys and models before they are written.")
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; use the flags only.")] = False,
    env_file: Annotated[Path, typer.Option(help="The file to write.")] = Path(".env"),
) -> None:
    """Set up a model, Telegram, and Discord, and write .env.

    Tokens, keys, and models are checked before anything is written. Press Enter to skip a question.
    The file is written after the last question, and its other lines are kept.
    """
    settings = read_settings()
    admins = list(admin or ())
    read_settings(admins=",".join(admins))  # raises if one of them is not an id
    tokens = {"telegram": telegram_token, "discord": discord_token}
    choice_from_flags = _read_model_flags(provider, api_key, base_url, model, model_file)
    try:
        if not yes:
            print_line("Set up Troupe: Enter skips a question, and nothing is saved until the end.")
        with log_only_warnings():
            choice = _choose_model(choice_from_flags, pull, settings, check=check, yes=yes)
            steps = _choose_bots(tokens, settings, check=check, yes=yes)
            admins += _choose_first_admin(steps, first_admin, settings, may_ask=not (yes or admins))
        tokens_by_kind = {bot.spec.kind: bot.token for bot in steps}
        bot_settings = bot_variables(tokens_by_kind, admins, settings)
        _write_env_file({**(choice.variables if choice else {}), **bot_settings}, env_file, yes=yes)
    except (KeyboardInterrupt, EOFError, typer.Abort):
        sys.stdout.write("\n")
        sys.stderr.write("troupe: setup was stopped; nothing was written\n")
        raise typer.Exit(_INTERRUPTED_EXIT_CODE) from None


def _choose_model(
    choice_from_flags: ModelChoice | None,
    model_source: str | None,
    settings: Settings,
    *,
    check: bool,
    yes: bool,
) -> ModelChoice | None:
    if model_source is not None:
        return _download_model(choice_from_flags or ModelChoice(), model_source, settings)
    if choice_from_flags is not None:
        return _check_model(choice_from_flags, settings, is_asked=check)
    return None if yes else _ask_for_model(settings)


def _write_env_file(changes: Mapping[str, str | None], env_file: Path, *, yes: bool) -> None:
    names = read_variable_names(env_file)
    variables = {key: value for key, value in changes.items() if value is not None or key in names}
    if not variables:
        print_line("Nothing was chosen, so nothing was written. To chat here, run `troupe chat`.")
        return
    change_texts = (key if value is not None else f"no {key}" for key, value in variables.items())
    print_line(f"Changes to {env_file}: {', '.join(change_texts)}")
    if not yes and not confirm("Write the file?", default=True):
        print_line("Nothing was written.")
        return
    write_variables(env_file, variables)
    print_line(f"{env_file} was written; only you can read it.")
    for name in find_environment_overrides(variables):
        print_line(f"The environment variable {name} overrides this file: unset the variable.")
    print_line("Start Troupe with `make run` or `troupe run`; `troupe check` tests all settings.")


# Questions raise `typer.Abort`, `KeyboardInterrupt`, or `EOFError` if the user stops.


def confirm(question: str, *, default: bool) -> bool:
    return typer.confirm(question, default=default, prompt_suffix=" ")


def _ask(question: str, *, is_secret: bool = False) -> str:
    """Return the answer to a question, or "" for Enter; secrets are not shown."""
    if is_secret and sys.stdin.isatty():
        # typer hides input only after asking, and drops what was pasted before that.
        return getpass(f"{question} ").strip()
    answer: str = typer.prompt(question, default="", show_default=False, prompt_suffix=" ")
    return answer.strip()


def _choose_option(
    question: str, options: Mapping[str, T], find_option: Callable[[str], T | None] = lambda _: None
) -> T | None:
    """Ask for an option, by its number or a text that names it; return None for Enter."""
    for number, option in enumerate(options, 1):
        print_line(f"  {number}) {option}")
    while True:
        answer = _ask(question)
        if not answer:
            return None
        if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(options):
            return list(options.values())[int(answer) - 1]
        if (matching_option := find_option(answer)) is not None:
            return matching_option
        print_line(f"Please type a number from 1 to {len(options)}, or press Enter.")


def _read_model_flags(
    provider: str | None,
    api_key: str | None,
    base_url: str | None,
    model: str | None,
    model_file: Path | None,
) -> ModelChoice | None:
    if provider == INCLUDED_MODEL:
        return ModelChoice()
    if provider is not None and base_url is None:
        provider = find_service(provider) or provider
    known_providers = sorted({INCLUDED_MODEL, *SERVICE_TITLES})
    if provider is not None and provider not in known_providers and base_url is None:
        matches = difflib.get_close_matches(provider, known_providers, n=1)
        hint = f"did you mean {matches[0]}?" if matches else f"known: {', '.join(known_providers)}"
        raise UserError(f"there is no provider {provider!r}; {hint}; others need --base-url")
    if not any((provider, api_key, base_url, model, model_file)):
        return None
    if api_key and not (provider or base_url):
        raise UserError("--api-key needs --provider or --base-url: whose key is it?")
    model_path = model_file.expanduser().absolute() if model_file else None
    return ModelChoice(provider, base_url, api_key, model, model_path)


def _ask_for_model(settings: Settings) -> ModelChoice | None:
    """Ask for a model until one works; return None to keep the current settings."""
    print_line("\nWhich model should answer?")
    options: dict[str, Callable[[], ModelChoice | None]] = {
        "the small model that comes with Troupe (94 MB; English only, often wrong)": ModelChoice,
        **{
            f"{SERVICE_TITLES[name]} on this machine: {', '.join(models[:3])}": partial(
                _ask_for_model_name, ModelChoice(name), models
            )
            for name, models in asyncio.run(find_local_services()).items()
        },
        "an online service, with a key: OpenAI, Anthropic, OpenRouter ...": _ask_for_online_model,
        "download a better model to this machine": partial(_ask_for_download, settings),
        "a GGUF file on this machine": _ask_for_file,
        "an OpenAI-compatible server, by its address": _ask_for_address,
    }

    def find_step(typed_name: str) -> Callable[[], ModelChoice | None] | None:
        service = find_service(typed_name)
        return partial(_ask_for_key_and_model, service) if service else None

    while True:
        step = _choose_option("Which one? (Enter: keep the current settings)", options, find_step)
        if step is None:
            return None
        try:
            choice = step()
            if choice is not None:
                return _check_model(choice, settings)
        except TroupeError as error:
            print_line(f"  That does not work: {error}")


def _ask_for_online_model() -> ModelChoice | None:
    options = {SERVICE_TITLES[one]: one for one in sorted(SERVICE_TITLES.keys() - KEYLESS_SERVICES)}
    service = _choose_option("Which service? (Enter: back)", options, find_service)
    return _ask_for_key_and_model(service) if service else None


def _ask_for_key_and_model(service: str) -> ModelChoice | None:
    """Ask for a service's model and, unless self-hosted, its key; return None to go back."""
    choice = ModelChoice(service)
    if service not in KEYLESS_SERVICES:
        title = SERVICE_TITLES[service]
        key = _ask(f"The key for {title} (it is not shown; Enter: back):", is_secret=True)
        if not key:
            return None
        choice = replace(choice, api_key=key)
    if service == AZURE_PROVIDER:  # each customer has an address, and deployments cannot be listed
        address = _ask("Your Azure endpoint, such as https://NAME.openai.azure.com (Enter: back):")
        if not address:
            return None
        address = address if "://" in address else f"https://{address}"
        _, _, deployment = read_azure_address(address, None)
        choice = replace(choice, base_url=address, model=deployment)
        return choice if choice.model else _ask_for_model_name(choice, ())
    return _ask_for_model_name(choice, asyncio.run(list_models(choice)))


def _ask_for_address() -> ModelChoice | None:
    address = _ask("The server's address, such as http://192.168.1.5:8000/v1 (Enter: back):")
    if not address:
        return None
    key = _ask("The server's API key (it is not shown; Enter: no key):", is_secret=True)
    if "://" not in address:
        address = f"http://{address}"
    choice = ModelChoice(base_url=address, api_key=key or None)
    models = asyncio.run(list_models(choice))
    if not models:  # most people omit the path
        choice_with_api_path = replace(choice, base_url=f"{address.rstrip('/')}/v1")
        if models := asyncio.run(list_models(choice_with_api_path)):
            choice = choice_with_api_path
    return _ask_for_model_name(choice, models)


def _ask_for_model_name(choice: ModelChoice, models: Sequence[str]) -> ModelChoice | None:
    if models:
        print_line("  Its models:")
    if len(models) > _MAX_LISTED_MODELS:
        print_line(f"  (the first {_MAX_LISTED_MODELS} of {len(models)})")
    names = {name: name for name in models[:_MAX_LISTED_MODELS]}
    chosen_name = _choose_option(
        "Which model? A number or a name (Enter: back)", names, lambda name: name
    )
    return replace(choice, model=chosen_name) if chosen_name else None


def _ask_for_file() -> ModelChoice | None:
    path_text = _ask("The path of the file:")
    return ModelChoice(model_path=Path(path_text).expanduser().absolute()) if path_text else None


def _ask_for_download(settings: Settings) -> ModelChoice | None:
    free_bytes = count_free_bytes()
    if free_bytes is not None:
        print_line(f"  This machine has {free_bytes / 1e9:.1f} GB of memory free.")
    options = {f"{name}: {size:.1f} GB, {words}": name for name, size, words in SUGGESTED_MODELS}
    source = _choose_option("Which one? (Enter: name another one, or go back)", options)
    source = source or _ask("OWNER/NAME:FILE (Enter: back)")
    return _download_model(ModelChoice(), source, settings) if source else None


def _download_model(choice: ModelChoice, source_text: str, settings: Settings) -> ModelChoice:
    source = hub.parse_model_source(source_text)
    if source is None:
        raise UserError(f"{source_text!r} is not of the form OWNER/NAME:FILE")
    path = asyncio.run(hub.pull_model(source, settings.data_dir, print_progress))
    _print_memory_needs(path, settings)
    return replace(choice, model=path.stem)


def _check_model(choice: ModelChoice, settings: Settings, *, is_asked: bool = True) -> ModelChoice:
    """Check that a model's file is valid or that its service answers; return the choice."""
    if choice.model_path is not None:
        _print_memory_needs(choice.model_path, settings)
    elif choice.uses_service and choice.model is None:
        models = asyncio.run(list_models(choice))
        model_list = f"; it lists {', '.join(models[:_MAX_LISTED_MODELS])}" if models else ""
        raise UserError(f"choose the service's model with --model{model_list}")
    elif is_asked and choice.uses_service:
        print_line("  asking the model ...")
        answer = asyncio.run(try_model(choice))
        print_line(f"  it answers: {answer}" if answer else "  it answers")
    return choice


def _print_memory_needs(path: Path, settings: Settings) -> None:
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    metadata = read_metadata(path)
    if metadata.is_projector:
        raise SettingsError(
            f"{path} is a projector, which reads images for another model; choose that model's file"
        )
    needed_bytes = metadata.estimate_memory_bytes(find_local_settings(settings.providers))
    free_ram = count_free_bytes()
    print_line(f"  {metadata.name or path.stem}: needs about {needed_bytes / 1e9:.1f} GB of memory")
    if free_ram is not None and needed_bytes > free_ram:
        print_line(f"  This machine has only {free_ram / 1e9:.1f} GB free: choose a smaller model.")


def _choose_bots(
    tokens: Mapping[str, str | None], settings: Settings, *, check: bool, yes: bool
) -> Sequence[BotStep]:
    steps = []
    for spec in platforms_using_tokens():
        token = tokens.get(spec.kind)
        if token is not None:
            steps.append(_find_bot(spec, token, settings) if check else BotStep(spec, token, None))
        elif not yes and (bot := _ask_for_bot(spec, settings)) is not None:
            steps.append(bot)
    return steps


def _ask_for_bot(spec: PlatformSpec, settings: Settings) -> BotStep | None:
    """Ask for a bot's token until one works; return None if skipped."""
    name = spec.kind.capitalize()
    print_line(f"\n{name}: get a bot's token from {asyncio.run(token_directions(spec, settings))}")
    while True:
        token = _ask(f"Token for {name} (it is not shown; Enter: skip):", is_secret=True)
        if not token:
            return None
        try:
            return _find_bot(spec, token, settings)
        except TroupeError as error:
            print_line(f"  {error}")


def _find_bot(spec: PlatformSpec, token: str, settings: Settings) -> BotStep:
    account = asyncio.run(inspect_account(spec, settings, token))
    print_line(f"  {spec.kind.capitalize()}: the token belongs to {account.name}")
    for note in account.notes:
        print_line(f"  {note}")
    print_line(f"  To {account.link_title}: {account.link}")
    _print_qr_code(account.link)
    return BotStep(spec, token, account)


def _choose_first_admin(
    steps: Sequence[BotStep], platform: str | None, settings: Settings, *, may_ask: bool
) -> Sequence[str]:
    """Let the first admin send a code to the bot; return their id in a list, empty if skipped."""
    if platform is not None:
        bot = next((one for one in steps if one.spec.kind == platform), None)
        if bot is None:
            raise UserError(f"--first-admin {platform} needs --{platform}-token")
        return [asyncio.run(_find_admin(bot, settings))]
    for bot in steps if may_ask else ():
        name = bot.spec.kind.capitalize()
        question = f"Become the first admin by sending a code to the bot on {name}?"
        if bot.account is not None and confirm(question, default=True):
            try:
                return [asyncio.run(_find_admin(bot, settings))]
            except TroupeError as error:
                print_line(f"  {error}")
    return []


async def _find_admin(bot: BotStep, settings: Settings) -> str:
    async with open_account_setup(bot.spec, settings, bot.token) as account:
        code = generate_admin_code()
        instructions = account.code_instructions(bot.account or await account.inspect(), code)
        print_line(f"  {instructions.text}")
        if instructions.link:
            print_line(f"  {instructions.link}")
            _print_qr_code(instructions.link)
        skip_hint = " (Enter: skip)" if _can_skip_wait() else ""
        print_line(f"  waiting for the code {code} ...{skip_hint}")
        sys.stdout.flush()
        person_id = await _wait_unless_skipped(account.wait_for_code(code))
    admin_id = f"{bot.spec.kind}:{person_id}"
    print_line(f"  {admin_id} is an admin.")
    return admin_id


async def _wait_unless_skipped(code_coroutine: Coroutine[Any, Any, str]) -> str:
    """Return the code sender's id; raises `UserError` after a few minutes, or on Enter."""
    loop, code_task = asyncio.get_running_loop(), asyncio.create_task(code_coroutine)
    typed_lines: list[str] = []

    def skip_wait() -> None:
        typed_lines.append(sys.stdin.readline())
        code_task.cancel()

    if _can_skip_wait():
        loop.add_reader(sys.stdin.fileno(), skip_wait)
    try:
        async with asyncio.timeout(ADMIN_CODE_TIMEOUT_SECONDS):
            return await code_task
    except asyncio.CancelledError:
        if not typed_lines:
            raise
        raise UserError("skipped; you can list admins in TROUPE_ADMINS") from None
    except TimeoutError:
        raise UserError(
            f"nobody sent the code within {ADMIN_CODE_TIMEOUT_SECONDS / 60:.0f} minutes"
        ) from None
    finally:
        if _can_skip_wait():
            loop.remove_reader(sys.stdin.fileno())


def _can_skip_wait() -> bool:
    return not IS_WINDOWS and sys.stdin.isatty()  # its event loop cannot watch stdin


def _print_qr_code(text: str) -> None:
    if sys.stdout.isatty():
        buffer = io.StringIO()
        segno.make(text, micro=False).terminal(buffer, compact=True, border=2)
        print_line(buffer.getvalue(), end="")
