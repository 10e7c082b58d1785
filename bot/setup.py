"""The steps of `troupe init` and the console's setup page, which write `.env` once at the end.

The shipped presets use the provider `local`, whose settings can refer to a file or to any service.
So one model choice is enough for all presets.
"""

import asyncio
import contextlib
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dotenv import dotenv_values, set_key, unset_key
from pydantic import SecretStr, ValidationError

from bot.backends.factory import make_backend
from bot.backends.openai_compatible.services import KEYLESS_SERVICES, SERVICE_ADDRESSES, SERVICES
from bot.backends.registry import backend_spec, default_spec
from bot.chat.prompt import Delta, Message, Prompt
from bot.errors import BackendUnavailable, PlatformError, SettingsError, TroupeError, UserError
from bot.platforms.registry import create_account_setup, platform_specs
from bot.platforms.spec import AccountSetup, BotAccount, CodeInstructions, PlatformSpec
from bot.ports import Backend
from bot.runtime.tasks import cancel_and_wait
from bot.runtime.validation_errors import describe_validation_error
from bot.settings import Settings, find_environment_overrides
from bot.telemetry.secret_masker import register_secrets
from bot.templates.renderer import Renderer
from bot.texts.text import Text, error_text, translatable
from bot.value_class import value_class

_UNQUOTED_VALUE = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")
_FILE_MODE = 0o600  # the file contains tokens and keys


def write_variables(file: Path, changes: Mapping[str, str | None]) -> None:
    """Set variables in a `.env` file, and remove those whose value is None.

    The file is replaced atomically, and only its owner can read it. Variables keep their order, and
    the case of names is ignored. Raises `SettingsError` without changing the file.
    """
    for name, value in changes.items():
        if value is not None and re.search(r"[\n\r\0]", value):
            raise SettingsError(f"{name} contains a line break; it must be one line")
    target = file.resolve()  # a symbolic link is kept
    try:
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as folder:
            staged_file = Path(folder) / target.name
            if target.exists():
                shutil.copyfile(target, staged_file)
            else:
                staged_file.touch()
            _apply_changes(staged_file, changes)
            staged_file.chmod(_FILE_MODE)
            staged_file.replace(target)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{file} cannot be written: {reason}; nothing was changed") from None


def _apply_changes(file: Path, changes: Mapping[str, str | None]) -> None:
    for name in dotenv_values(file, interpolate=False):
        upper_name = name.upper()
        if upper_name in changes and (changes[upper_name] is None or name != upper_name):
            unset_key(file, name)
    for name, value in changes.items():
        if value is not None:
            set_key(file, name, value, "never" if _UNQUOTED_VALUE.fullmatch(value) else "always")


def read_variable_names(file: Path) -> Collection[str]:
    """Return the names of a file's variables, in upper case; empty if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return {name.upper() for name in dotenv_values(file, interpolate=False)}
    return ()


INCLUDED_MODEL = "included"
"""Used in place of a provider's id to choose the model that comes with Troupe."""

_LOCAL_PROVIDER_PREFIX = "TROUPE_PROVIDERS__LOCAL__"
_TRIAL_QUESTION = "Say hello in one short sentence."
_MAX_ANSWER_TOKENS = 64
_SEARCH_TIMEOUT_SECONDS = 2.0
_ANSWER_TIMEOUT_SECONDS = 60.0
_EMBEDDER_NAMES = re.compile(r"embed|\b(bge|e5|gte)\b|minilm|paraphrase", re.IGNORECASE)


@value_class
class ModelChoice:
    """The chosen model: from a service or a local file; the default if all fields are None."""

    provider: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    model: str | None = None
    """The service's name for the model, or the name of a file in the models folder."""
    model_path: Path | None = None

    @property
    def uses_service(self) -> bool:
        """Whether a service runs the model; otherwise, it is a local file."""
        return self.provider is not None or self.base_url is not None

    @property
    def variables(self) -> Mapping[str, str | None]:
        """The settings to write; a value of None removes the setting of an earlier choice."""
        kind, default_kind = default_spec(self.provider or "").kind, default_spec("").kind
        values_by_suffix = {
            "KIND": kind if kind != default_kind else None,
            "BASE_URL": self.base_url or SERVICE_ADDRESSES.get(self.provider or ""),
            "API_KEY": self.api_key,
            "MODEL": self.model,
            "MODEL_PATH": str(self.model_path) if self.model_path else None,
        }
        return {
            f"{_LOCAL_PROVIDER_PREFIX}{suffix}": value for suffix, value in values_by_suffix.items()
        }


SUGGESTED_MODELS: Sequence[tuple[str, float, str]] = (
    ("Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5, "good answers; 6 GB of memory"),
    ("Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.0, "better answers; 9 GB of memory"),
)
"""Models worth downloading: source for `troupe model pull`, size in GB, and description."""

SERVICE_TITLES = {
    "anthropic": "Anthropic (Claude)",
    **{name: service.title for name, service in SERVICES.items()},
}
"""The display names of services, by provider id."""


def find_service(typed_name: str) -> str | None:
    """Return the id of the service that a name such as "Claude" or "open router" means, or None."""
    word, titles = _keep_alnum(typed_name), SERVICE_TITLES
    keys = {name: (_keep_alnum(name), _keep_alnum(titles[name])) for name in sorted(titles)}
    exact_matches = [name for name, names in keys.items() if word in names]
    matches = exact_matches or [name for name, (_, title) in keys.items() if word and word in title]
    return min(matches, key=lambda name: len(titles[name]), default=None)


def _keep_alnum(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


async def find_local_services() -> Mapping[str, Sequence[str]]:
    """Return the models of local servers that answer on their usual ports, by provider."""
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(_find_models(name)) for name in sorted(KEYLESS_SERVICES)}
    return {name: models for name, task in tasks.items() if (models := task.result())}


async def list_models(choice: ModelChoice) -> Sequence[str]:
    """Return the chat models that a service lists, if any; raise `TroupeError` if it fails."""
    async with _open_backend(choice) as backend:
        return [one for one in await backend.list_models() if not _EMBEDDER_NAMES.search(one)]


async def try_model(choice: ModelChoice) -> str:
    """Return a model's reply to a short question; raise `SettingsError` or `BackendUnavailable`."""
    prompt = Prompt(
        messages=(Message("user", _TRIAL_QUESTION),),
        model=choice.model or "default",
        conversation="init:check",
        max_output_tokens=_MAX_ANSWER_TOKENS,
    )
    async with _open_backend(choice) as backend:
        try:
            async with (
                asyncio.timeout(_ANSWER_TIMEOUT_SECONDS),
                aclosing(backend.generate(prompt)) as events,
            ):
                deltas = [event.text async for event in events if isinstance(event, Delta)]
        except TimeoutError:
            raise BackendUnavailable(f"no answer within {_ANSWER_TIMEOUT_SECONDS:g} s") from None
    return " ".join("".join(deltas).split())


async def _find_models(name: str) -> Sequence[str]:
    with contextlib.suppress(TroupeError, TimeoutError):
        async with asyncio.timeout(_SEARCH_TIMEOUT_SECONDS):
            return await list_models(ModelChoice(provider=name))
    return ()


@asynccontextmanager
async def _open_backend(choice: ModelChoice) -> AsyncIterator[Backend]:
    name = choice.provider or "local"
    kind = default_spec(choice.provider or "").kind
    optional_fields = {
        "base_url": choice.base_url,
        "api_key": choice.api_key,
        "model": choice.model,
        "first_token_seconds": _ANSWER_TIMEOUT_SECONDS,  # the model may have to be loaded first
    }
    fields = {key: value for key, value in optional_fields.items() if value is not None}
    try:
        provider_settings = backend_spec(kind).settings.model_validate({"kind": kind, **fields})
        settings = provider_settings.with_defaults(name)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = "".join(str(part) for part in problem["loc"]).upper()
        raise SettingsError(f"{path}: {describe_validation_error(problem)}") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None
    async with Renderer() as renderer:
        backend = make_backend(name, settings, Path(), renderer)
        try:
            yield backend
        finally:
            await backend.close()


ADMIN_CODE_TIMEOUT_SECONDS = 300.0
_ADMIN_CODE_LENGTH = 6


def platforms_using_tokens() -> Sequence[PlatformSpec]:
    """Return the platforms where a bot account is set up with a token."""
    return [spec for spec in platform_specs() if spec.account_setup is not None]


@asynccontextmanager
async def open_account_setup(
    spec: PlatformSpec, settings: Settings, token: str
) -> AsyncIterator[AccountSetup]:
    """Open the bot account of a token; raise `SettingsError` if the platform uses no tokens."""
    platform_settings, account = settings.platform_settings(spec), None
    if platform_settings is not None:
        platform_settings = platform_settings.model_copy(update={"token": SecretStr(token)})
        account = create_account_setup(spec, platform_settings)
    if account is None:
        raise SettingsError(f"the platform {spec.kind} does not use bot tokens")
    try:
        yield account
    finally:
        await account.close()


async def token_directions(spec: PlatformSpec, settings: Settings) -> Text:
    """Return a text that says where to get a bot token on a platform."""
    async with open_account_setup(spec, settings, "") as account:
        return account.token_source


async def inspect_account(spec: PlatformSpec, settings: Settings, token: str) -> BotAccount:
    """Return the bot account of a token; raise `PlatformError` if the token is wrong."""
    async with open_account_setup(spec, settings, token) as account:
        return await account.inspect()


def generate_admin_code() -> str:
    """Return a new random six-digit code."""
    return "".join(secrets.choice("0123456789") for _ in range(_ADMIN_CODE_LENGTH))


def bot_variables(
    tokens: Mapping[str, str], admins: Sequence[str], settings: Settings
) -> Mapping[str, str]:
    """Return the variables to write for tokens (by platform) and for additional admins."""
    variables = {f"TROUPE_{kind.upper()}__TOKEN": token for kind, token in tokens.items()}
    if admins:
        all_admins = dict.fromkeys([*sorted(settings.admins), *admins])
        variables["TROUPE_ADMINS"] = ",".join(all_admins)
    return variables


@dataclass(slots=True)
class BotStep:
    """The setup of one bot."""

    spec: PlatformSpec
    token: str = field(repr=False)
    account: BotAccount | None
    """The bot's account, or None if the token was not checked."""
    code: str = ""
    """The code that the first admin must send; "" before `ask_for_admin`."""
    code_instructions: CodeInstructions | None = None
    admin: str | None = None
    """The person who sent the code, such as "telegram:5"."""
    problem: str = ""
    code_wait_task: asyncio.Task[None] | None = None

    @property
    def awaits_code(self) -> bool:
        return self.code_wait_task is not None and not self.code_wait_task.done()


class SetupSteps:
    """The choices made on the setup page so far; `write_choices` saves them to `env_file`."""

    def __init__(self, settings: Settings, env_file: Path) -> None:
        self._settings = settings
        self._env_file = env_file
        self.bots: dict[str, BotStep] = {}
        """The chosen bots, by platform."""
        self.model: ModelChoice | None = None
        """The chosen model, once it has answered."""
        self.newest_choice = ModelChoice("openai")
        """The newest choice, whether it answered or not; it stays after `write_choices`."""
        self.saved_variables: list[str] = []
        """The variables set in the file since the settings were read."""
        self._saved_admins: list[str] = []
        """Admins written to the file since the settings were read."""

    async def platform_choices(self) -> Sequence[Mapping[str, object]]:
        """Return the platforms on which a bot can be set up."""
        settings = self._settings
        return [
            {
                "kind": spec.kind,
                "token_source": await token_directions(spec, settings),
                "is_configured": spec in settings.configured_platforms,
            }
            for spec in platforms_using_tokens()
            if settings.platform_settings(spec) is not None
        ]

    @property
    def model_in_use(self) -> str:
        """The model and address of the running service's provider `local`; "" if unknown."""
        local_settings = self._settings.providers.get("local")
        names = (getattr(local_settings, "model", None), getattr(local_settings, "base_url", None))
        return ", ".join(str(one) for one in names if one)

    async def check_token(self, kind: str, token: str) -> BotStep:
        """Check a token, and add its bot to the choices; raise `PlatformError` if it is wrong."""
        spec = next((one for one in platforms_using_tokens() if one.kind == kind), None)
        if spec is None:
            raise UserError(translatable("There is no such platform."))
        account = await inspect_account(spec, self._settings, token)
        await self.drop_bot(kind)
        self.bots[kind] = BotStep(spec, token, account)
        return self.bots[kind]

    async def check_model(self, choice: ModelChoice) -> str:
        """Return a model's short answer, and store the choice; raises like `try_model`.

        Without a key, reuse the key that was tried before with the same service and address.
        """
        if choice.provider not in SERVICE_TITLES:
            raise UserError(translatable("There is no such provider."))
        if replace(self.newest_choice, model=choice.model, api_key=None) == choice:
            choice = replace(choice, api_key=self.newest_choice.api_key)
        self.newest_choice = choice
        register_secrets([choice.api_key] if choice.api_key else [])
        answer = await try_model(choice)
        self.model = choice
        return answer

    async def ask_for_admin(self, kind: str) -> None:
        """Create a code, and wait in the background until someone sends it to the bot."""
        step = self.bots.get(kind)
        if step is None:
            raise UserError(translatable("Check a token first."))
        if step.code_wait_task is not None:
            await cancel_and_wait([step.code_wait_task])
        step.code, step.admin, step.problem = generate_admin_code(), None, ""
        async with open_account_setup(step.spec, self._settings, step.token) as account:
            step.code_instructions = account.code_instructions(
                step.account or await account.inspect(), step.code
            )
        step.code_wait_task = asyncio.create_task(self._wait_for_admin(step))

    async def _wait_for_admin(self, step: BotStep) -> None:
        try:
            async with (
                asyncio.timeout(ADMIN_CODE_TIMEOUT_SECONDS),
                open_account_setup(step.spec, self._settings, step.token) as account,
            ):
                step.admin = f"{step.spec.kind}:{await account.wait_for_code(step.code)}"
        except TimeoutError:
            step.problem = translatable("Nobody sent the code in time.")
        except PlatformError as error:
            step.problem = error_text(error)

    async def drop_bot(self, kind: str) -> None:
        """Remove a bot from the choices so far."""
        step = self.bots.pop(kind, None)
        if step is not None and step.code_wait_task is not None:
            await cancel_and_wait([step.code_wait_task])

    def variables(self) -> Mapping[str, str | None]:
        """Return the variables to write; None removes a variable."""
        all_admins = [*self._saved_admins, *admins] if (admins := self._find_admins()) else ()
        tokens = {kind: one.token for kind, one in self.bots.items()}
        model = self.model.variables if self.model is not None else {}
        return {**bot_variables(tokens, all_admins, self._settings), **model}

    def names_to_write(self) -> Sequence[str]:
        """Return the variables that `write_choices` will set, without those that it removes."""
        return [name for name, value in self.variables().items() if value is not None]

    def _find_admins(self) -> list[str]:
        return [one.admin for one in self.bots.values() if one.admin is not None]

    async def write_choices(self) -> Sequence[str]:
        """Write the variables; return the names that the environment overrides."""
        variables, names = self.variables(), self.names_to_write()
        if not variables:
            raise UserError(translatable("Check a token or a model first."))
        await asyncio.to_thread(write_variables, self._env_file, variables)
        self.saved_variables += [name for name in names if name not in self.saved_variables]
        self._saved_admins += self._find_admins()
        await self.close()
        self.model = None
        return find_environment_overrides(variables)

    async def close(self) -> None:
        """Stop waiting for codes, and drop the tokens."""
        for kind in list(self.bots):
            await self.drop_bot(kind)
