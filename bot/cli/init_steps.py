"""The steps of `troupe init`: ask for a model, a bot and its first admin, and check each live."""

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bot.backends.llama_cpp.hardware import free_bytes
from bot.backends.llama_cpp.settings import local_settings
from bot.backends.model_files import hub
from bot.backends.model_files.gguf import read_metadata
from bot.backends.openai_compatible.azure import PROVIDER as AZURE
from bot.backends.openai_compatible.azure import read_azure_address
from bot.backends.openai_compatible.services import KEYLESS
from bot.cli.questions import ask, ask_secret, choose, print_qr_code
from bot.cli.text_io import print_line, print_progress
from bot.errors import SettingsError, TroupeError, UserError
from bot.platforms.spec import BotAccount, PlatformSpec
from bot.runtime.tasks import cancel_and_wait
from bot.settings import Settings
from bot.setup.accounts import make_code, open_account
from bot.setup.models import (
    SUGGESTED,
    FoundService,
    ModelChoice,
    find_local_services,
    find_service,
    known_services,
    list_models,
    service_title,
    try_model,
)
from bot.value_class import value_class

_MAX_LISTED = 15
_CODE_MINUTES = 5


@value_class
class AccountStep:
    """A bot that was chosen."""

    spec: PlatformSpec
    token: str
    account: BotAccount | None
    """None: it was not checked."""


# --- the model ----------------------------------------------------------------------------


def ask_for_model(settings: Settings) -> ModelChoice | None:
    """Ask which model answers until one does; None: what is set stays."""
    print_line("\nWhich model answers?")
    found = asyncio.run(find_local_services())
    options = [
        "the small model that comes with Troupe (94 MB; English only, often wrong)",
        *(
            f"{service_title(one.provider)} on this machine: {', '.join(one.models[:3])}"
            for one in found
        ),
        "an online service, with a key: OpenAI, Anthropic, OpenRouter ...",
        "download a better model to this machine",
        "a GGUF file that is here",
        "a server with OpenAI's API, at its address",
    ]
    services = [*known_services(), *sorted(KEYLESS)]

    def find(words: str) -> int | None:
        service = find_service(words)
        return None if service not in services else len(options) + services.index(service)

    while True:
        chosen = choose("Which one? (Enter: what is set now)", options, find)
        if chosen is None:
            return None
        try:
            if chosen >= len(options):
                choice = _ask_about_service(services[chosen - len(options)], settings)
            else:
                choice = _ask_about(chosen, found, settings)
        except TroupeError as error:
            print_line(f"  That does not work: {error}")
            continue
        if choice is not None:
            return choice


def _ask_about(
    chosen: int, found: Sequence[FoundService], settings: Settings
) -> ModelChoice | None:
    """Ask for the details of an option and check them; None: show the options again."""
    services = len(found)
    if chosen == 0:
        return ModelChoice()
    if chosen <= services:
        service = found[chosen - 1]
        choice = _ask_model_name(ModelChoice(service.provider), service.models)
    elif chosen == services + 1:
        choice = _ask_for_service()
    elif chosen == services + 2:
        return _ask_for_download(settings)
    elif chosen == services + 4:
        choice = _ask_for_address()
    else:
        file = ask("The path of the file:")
        choice = ModelChoice(model_path=Path(file).expanduser().absolute()) if file else None
    return None if choice is None else check_model(choice, None, settings)


def _ask_about_service(service: str, settings: Settings) -> ModelChoice | None:
    """Ask for the details of a service that was named."""
    choice = _ask_for_key(service)
    return None if choice is None else check_model(choice, None, settings)


def _ask_for_service() -> ModelChoice | None:
    names = known_services()

    def find(words: str) -> int | None:
        service = find_service(words)
        return None if service not in names else names.index(service)

    titles = [service_title(name) for name in names]
    chosen = choose("Which service? (Enter: back)", titles, find)
    return None if chosen is None else _ask_for_key(names[chosen])


def _ask_for_key(service: str) -> ModelChoice | None:
    """Ask for the key of a service, unless it is a server of one's own, and for its model."""
    choice = ModelChoice(service)
    if service not in KEYLESS:
        title = service_title(service)
        key = ask_secret(f"The key for {title} (it is not shown; Enter: back):")
        if not key:
            return None
        choice = replace(choice, api_key=key)
    if service == AZURE:  # it has no address of its own, and lists no deployments
        address = ask("Its endpoint, such as https://NAME.openai.azure.com (Enter: back):")
        if not address:
            return None
        address = address if "://" in address else f"https://{address}"
        deployment = read_azure_address(address, None).deployment
        choice = replace(choice, base_url=address, model=deployment)
        return choice if choice.model else _ask_model_name(choice, ())
    return _ask_model_name(choice, asyncio.run(list_models(choice)))


def _ask_for_address() -> ModelChoice | None:
    address = ask("Its address, such as http://192.168.1.5:8000/v1 (Enter: back):")
    if not address:
        return None
    key = ask_secret("Its key, if it needs one (it is not shown; Enter: none):")
    if "://" not in address:
        address = f"http://{address}"
    choice = ModelChoice(base_url=address, api_key=key or None)
    models = asyncio.run(list_models(choice))
    if not models:  # most people leave out the path
        longer = replace(choice, base_url=f"{address.rstrip('/')}/v1")
        if models := asyncio.run(list_models(longer)):
            choice = longer
    return _ask_model_name(choice, models)


def _ask_model_name(choice: ModelChoice, models: Sequence[str]) -> ModelChoice | None:
    shown = models[:_MAX_LISTED]
    if shown:
        print_line("  Its models:")
    for number, name in enumerate(shown, 1):
        print_line(f"  {number}) {name}")
    if len(models) > len(shown):
        print_line(f"  ... and {len(models) - len(shown)} more")
    answer = ask("Which model? A number or a name (Enter: back)")
    if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(shown):
        answer = shown[int(answer) - 1]
    return replace(choice, model=answer) if answer else None


def _ask_for_download(settings: Settings) -> ModelChoice | None:
    free = free_bytes()
    if free is not None:
        print_line(f"  This machine has {free / 1e9:.1f} GB of memory free.")
    options = [f"{one.source}: {one.size_gb:.1f} GB, {one.words}" for one in SUGGESTED]
    chosen = choose("Which one? (Enter: another one, or back)", options)
    source = (
        SUGGESTED[chosen].source if chosen is not None else ask("OWNER/NAME:FILE (Enter: back)")
    )
    return check_model(ModelChoice(), source, settings) if source else None


def check_model(
    choice: ModelChoice, pull: str | None, settings: Settings, *, is_checked: bool = True
) -> ModelChoice:
    """Download a model if one is named, and try what answers.

    Raises:
        TroupeError: it cannot be used; the text says why.
    """
    if pull is not None:
        source = hub.parse_source(pull)
        if source is None:
            raise UserError(f"{pull!r} is not of the form OWNER/NAME:FILE")
        path = asyncio.run(hub.pull_model(source, settings.data_dir, print_progress))
        _describe_file(path, settings)
        return replace(choice, model=path.stem)
    if choice.model_path is not None:
        _describe_file(choice.model_path, settings)
    elif choice.is_service and choice.model is None:
        raise UserError(_describe_missing_model(choice))
    elif is_checked and choice.is_service:
        print_line("  asking the model ...")
        answer = asyncio.run(try_model(choice))
        print_line(f"  it answers: {answer}" if answer else "  it answers")
    return choice


def _describe_missing_model(choice: ModelChoice) -> str:
    models = asyncio.run(list_models(choice))
    listed = f"; it lists {', '.join(models[:_MAX_LISTED])}" if models else ""
    return f"name the service's model with --model{listed}"


def _describe_file(path: Path, settings: Settings) -> None:
    """Read a GGUF file and say whether there is memory for it; raises `SettingsError`."""
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    metadata = read_metadata(path)
    if metadata.is_projector:
        raise SettingsError(f"{path} is a projector, which reads images for another model")
    wanted, free = metadata.estimate_memory_bytes(local_settings(settings.providers)), free_bytes()
    print_line(f"  {metadata.name or path.stem}: needs about {wanted / 1e9:.1f} GB of memory")
    if free is not None and wanted > free:
        print_line(f"  This machine has only {free / 1e9:.1f} GB free: take a smaller one.")


# --- bots ---------------------------------------------------------------------------------


def ask_for_account(spec: PlatformSpec, settings: Settings) -> AccountStep | None:
    """Ask for a token until one works; None: skipped."""
    name = spec.kind.capitalize()
    print_line(f"\n{name}: a bot's token is from {asyncio.run(_where_from(spec, settings))}")
    while True:
        token = ask_secret(f"Token for {name} (it is not shown; Enter: skip):")
        if not token:
            return None
        try:
            return check_account(spec, token, settings)
        except TroupeError as error:
            print_line(f"  {error}")


def check_account(
    spec: PlatformSpec, token: str, settings: Settings, *, is_checked: bool = True
) -> AccountStep:
    """Ask the platform whose token it is, and show the bot with its link.

    Raises:
        PlatformError: the token is wrong, or the platform cannot be reached.
    """
    if not is_checked:
        return AccountStep(spec, token, None)
    account = asyncio.run(_inspect(spec, token, settings))
    print_line(f"  {spec.kind.capitalize()}: this is {account.name}")
    for note in account.notes:
        print_line(f"  {note}")
    print_line(f"  To {account.link_title}: {account.link}")
    print_qr_code(account.link)
    return AccountStep(spec, token, account)


async def _where_from(spec: PlatformSpec, settings: Settings) -> str:
    async with open_account(spec, settings, "") as account:
        return account.where_from


async def _inspect(spec: PlatformSpec, token: str, settings: Settings) -> BotAccount:
    async with open_account(spec, settings, token) as account:
        return await account.inspect()


async def add_first_admin(step: AccountStep, settings: Settings) -> str:
    """Show a code, wait until somebody sends it to the bot, and return who that is.

    Raises:
        UserError: nobody did in time, or it was skipped.
        PlatformError: the bot cannot receive messages now.
    """
    async with open_account(step.spec, settings, step.token) as account:
        code = make_code()
        request = account.request_code(step.account or await account.inspect(), code)
        print_line(f"  {request.words}")
        if request.link:
            print_line(f"  {request.link}")
            print_qr_code(request.link)
        skips = " (Enter: skip)" if sys.stdin.isatty() else ""
        print_line(f"  waiting for the code {code} ...{skips}")
        sys.stdout.flush()
        person = await _first_of(account.wait_for_code(code))
    admin = f"{step.spec.kind}:{person}"
    print_line(f"  {admin} is an admin.")
    return admin


async def _first_of(waiting: Coroutine[Any, Any, str]) -> str:
    """Wait for the code, but not longer than some minutes, nor after Enter."""
    loop = asyncio.get_running_loop()
    skipped = asyncio.Event()
    reads_keys = sys.stdin.isatty()
    if reads_keys:
        loop.add_reader(sys.stdin.fileno(), _read_line, skipped)
    received, enter = asyncio.create_task(waiting), asyncio.create_task(skipped.wait())
    try:
        await asyncio.wait(
            {received, enter}, timeout=_CODE_MINUTES * 60, return_when=asyncio.FIRST_COMPLETED
        )
        if received.done():
            return received.result()
    finally:
        if reads_keys:
            loop.remove_reader(sys.stdin.fileno())
        await cancel_and_wait([received, enter])
    if skipped.is_set():
        raise UserError("skipped; TROUPE_ADMINS names admins as well")
    raise UserError(f"nobody sent the code within {_CODE_MINUTES} minutes")


def _read_line(skipped: asyncio.Event) -> None:
    sys.stdin.readline()
    skipped.set()
