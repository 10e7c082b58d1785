"""Check a bot's token, and learn the id of its first admin by a code that the person sends."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pydantic import SecretStr

from bot.errors import SettingsError
from bot.platforms.account import AccountSetup
from bot.platforms.registry import make_account_setup, platform_specs
from bot.platforms.spec import PlatformSpec
from bot.settings import Settings

_CODE_DIGITS = 6


def platforms_with_tokens() -> Sequence[PlatformSpec]:
    """Return the platforms whose bots have a token."""
    return [spec for spec in platform_specs() if spec.account_setup is not None]


@asynccontextmanager
async def open_account(
    spec: PlatformSpec, settings: Settings, token: str
) -> AsyncIterator[AccountSetup]:
    """Open the bot of a token, at the address of the platform's API that is set.

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


def token_variable(spec: PlatformSpec) -> str:
    """Return TROUPE_DISCORD__TOKEN for Discord."""
    return f"TROUPE_{spec.kind.upper()}__TOKEN"


def make_code() -> str:
    """Return a new code of six digits."""
    return "".join(secrets.choice("0123456789") for _ in range(_CODE_DIGITS))


def add_admins(settings: Settings, added: Sequence[str]) -> str:
    """Return the value of TROUPE_ADMINS with these people added to those that are set."""
    return ",".join(dict.fromkeys([*sorted(settings.admins), *added]))
