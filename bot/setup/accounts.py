"""Set up bots on platforms: check a token, find the first admin, and write the settings."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from bot.errors import PlatformError, SettingsError, UserError
from bot.platforms.registry import make_account_setup, platform_specs
from bot.platforms.spec import AccountSetup, BotAccount, CodeRequest, PlatformSpec
from bot.runtime.tasks import cancel_and_wait
from bot.settings import Settings, set_in_environment
from bot.setup.env_file import write_variables
from bot.texts.text import Text, text_of, translatable
from bot.value_class import value_class

CODE_SECONDS = 300.0
"""How long the first admin may take to send the code."""
_CODE_DIGITS = 6


def platforms_with_tokens() -> Sequence[PlatformSpec]:
    """Return the platforms whose bots have a token."""
    return [spec for spec in platform_specs() if spec.account_setup is not None]


@asynccontextmanager
async def open_account(
    spec: PlatformSpec, settings: Settings, token: str
) -> AsyncIterator[AccountSetup]:
    """Open the account of a token, through the configured API address of the platform.

    Raises:
        SettingsError: the platform's bots have no token.
    """
    given = settings.platform(spec)
    if given is None:
        raise SettingsError(f"bots of {spec.kind} have no token")
    account = make_account_setup(spec, given.model_copy(update={"token": SecretStr(token)}))
    if account is None:
        raise SettingsError(f"bots of {spec.kind} have no token")
    try:
        yield account
    finally:
        await account.close()


async def inspect_account(spec: PlatformSpec, settings: Settings, token: str) -> BotAccount:
    """Ask the platform whose token it is.

    Raises:
        PlatformError: the token is wrong, or the platform cannot be reached.
    """
    async with open_account(spec, settings, token) as account:
        return await account.inspect()


def make_code() -> str:
    """Return a new code of six digits."""
    return "".join(secrets.choice("0123456789") for _ in range(_CODE_DIGITS))


def bot_variables(
    tokens: Mapping[str, str], admins: Sequence[str], settings: Settings
) -> Mapping[str, str]:
    """Return the variables to write: tokens by platform, and admins beside those that are set."""
    variables = {f"TROUPE_{kind.upper()}__TOKEN": token for kind, token in tokens.items()}
    if admins:
        everybody = dict.fromkeys([*sorted(settings.admins), *admins])
        variables["TROUPE_ADMINS"] = ",".join(everybody)
    return variables


@dataclass(slots=True)
class BotStep:
    """A bot whose token was checked."""

    spec: PlatformSpec
    token: str = field(repr=False)
    account: BotAccount
    code: str = ""
    """What the first admin sends; empty: nobody was asked yet."""
    request: CodeRequest | None = None
    admin: str | None = None
    """Who has sent the code: "telegram:5"."""
    problem: str = ""
    """Why nobody became an admin."""
    waiting: asyncio.Task[None] | None = None

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def is_waiting(self) -> bool:
        return self.waiting is not None and not self.waiting.done()


@value_class
class PlatformChoice:
    """A platform that a bot can be set up for."""

    kind: str
    where_from: Text
    """Where people get a token."""
    is_configured: bool
    """Whether a bot is set already."""


class SetupSteps:
    """The choices made so far.

    Args:
        settings: what is set already.
        env_file: the file that is written at the end.
    """

    def __init__(self, settings: Settings, env_file: Path) -> None:
        self._settings = settings
        self._env_file = env_file
        self._bots: dict[str, BotStep] = {}
        self._written_admins: list[str] = []
        """Admins in the file that are not in the settings, which are read once."""

    @property
    def bots(self) -> Sequence[BotStep]:
        return list(self._bots.values())

    async def choices(self) -> Sequence[PlatformChoice]:
        """Return the platforms whose bots have a token."""
        configured = {spec.kind for spec in self._settings.configured_platforms}
        choices = []
        for spec in platforms_with_tokens():
            if self._settings.platform(spec) is None:
                continue
            async with open_account(spec, self._settings, "") as account:
                is_configured = spec.kind in configured
                choices.append(PlatformChoice(spec.kind, account.where_from, is_configured))
        return choices

    async def check_token(self, kind: str, token: str) -> BotStep:
        """Ask the platform whose token it is, and remember the bot.

        Raises:
            UserError: there is no such platform.
            PlatformError: the token is wrong, or the platform cannot be reached.
        """
        spec = next((one for one in platforms_with_tokens() if one.kind == kind), None)
        if spec is None:
            raise UserError(translatable("There is no such platform."))
        account = await inspect_account(spec, self._settings, token)
        await self.forget(kind)
        self._bots[kind] = BotStep(spec, token, account)
        return self._bots[kind]

    async def ask_for_admin(self, kind: str) -> None:
        """Create a code, and wait in the background until somebody sends it to the bot."""
        step = self._step(kind)
        if step.waiting is not None:
            await cancel_and_wait([step.waiting])
        step.code, step.admin, step.problem = make_code(), None, ""
        async with open_account(step.spec, self._settings, step.token) as account:
            step.request = account.request_code(step.account, step.code)
        step.waiting = asyncio.create_task(self._wait_for_code(step))

    async def _wait_for_code(self, step: BotStep) -> None:
        try:
            async with (
                asyncio.timeout(CODE_SECONDS),
                open_account(step.spec, self._settings, step.token) as account,
            ):
                step.admin = f"{step.kind}:{await account.wait_for_code(step.code)}"
        except TimeoutError:
            step.problem = translatable("Nobody sent the code in time.")
        except PlatformError as error:
            step.problem = text_of(error)

    async def forget(self, kind: str) -> None:
        """Drop a chosen bot; nothing is written."""
        step = self._bots.pop(kind, None)
        if step is not None and step.waiting is not None:
            await cancel_and_wait([step.waiting])

    def variables(self) -> Mapping[str, str]:
        """Return the variables to write."""
        admins = self._admins()
        everybody = [*self._written_admins, *admins] if admins else ()
        tokens = {one.kind: one.token for one in self.bots}
        return bot_variables(tokens, everybody, self._settings)

    def _admins(self) -> list[str]:
        return [one.admin for one in self.bots if one.admin is not None]

    async def write(self) -> Sequence[str]:
        """Write the variables; return those that the environment overrides.

        Raises:
            UserError: nothing was chosen.
            SettingsError: the file cannot be written.
        """
        variables = self.variables()
        if not variables:
            raise UserError(translatable("Check a token first."))
        await asyncio.to_thread(write_variables, self._env_file, variables)
        self._written_admins += self._admins()
        await self.close()
        return set_in_environment(variables)

    async def close(self) -> None:
        """Stop waiting for codes, and forget the tokens."""
        for kind in list(self._bots):
            await self.forget(kind)

    def _step(self, kind: str) -> BotStep:
        step = self._bots.get(kind)
        if step is None:
            raise UserError(translatable("Check a token first."))
        return step
