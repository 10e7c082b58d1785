"""The available platforms; the code of a platform is imported only when it starts.

To add a platform, write a package with a `SPEC` and add one line here, or write a plug-in.
"""

from collections.abc import Sequence
from importlib import import_module  # noqa: TID251 # this is a plug registry
from typing import Any

from bot.chat.outgoing import Limits
from bot.errors import PluginFailed, TroupeError
from bot.platforms.discord import SPEC as DISCORD
from bot.platforms.spec import AccountSetup, PlatformContext, PlatformSettings, PlatformSpec
from bot.platforms.telegram import SPEC as TELEGRAM
from bot.platforms.terminal import SPEC as TERMINAL
from bot.platforms.web import SPEC as WEB
from bot.ports import Platform
from bot.runtime.plugins import enabled_plugins

_SPECS = {spec.kind: spec for spec in (DISCORD, TELEGRAM, TERMINAL, WEB)}


def register(spec: PlatformSpec) -> None:
    """Add a platform; must be called before the settings are read; raises `ValueError`."""
    if not isinstance(spec, PlatformSpec):
        raise ValueError("not a PlatformSpec")  # noqa: TRY004 # callers show a ValueError's text
    if spec.settings is not None:
        spec.settings()  # raises if a setting has no default, which is not allowed
    if spec.kind in _SPECS:
        raise ValueError(f"the platform {spec.kind!r} is already registered")
    _SPECS[spec.kind] = spec


def platform_specs() -> Sequence[PlatformSpec]:
    return tuple(_SPECS.values())


def terminal_platforms() -> Sequence[PlatformSpec]:
    """Return the platforms whose chat is in the terminal where Troupe was started."""
    return [spec for spec in _SPECS.values() if spec.uses_terminal]


def companion_platforms() -> Sequence[PlatformSpec]:
    """Return the platforms that run whenever the web console runs."""
    return [spec for spec in _SPECS.values() if spec.is_companion]


def imitable_platforms() -> Sequence[str]:
    """Return the names of the platforms that web channels can imitate."""
    return [spec.kind for spec in _SPECS.values() if spec.limits is not None]


def channel_limits(kind: str) -> Limits | None:
    """Return the limits of a platform's channels, or None if they are unknown."""
    spec = _SPECS.get(kind)
    limits: Limits | None = (
        _import_attribute(spec.limits) if spec is not None and spec.limits else None
    )
    return limits


def create_platform(
    spec: PlatformSpec, settings: PlatformSettings | None, context: PlatformContext
) -> Platform:
    """Import and create a platform, without connecting; raises `SettingsError`, `PluginFailed`."""
    try:
        made: Platform = _import_attribute(spec.factory)(settings, context)
    except Exception as error:
        if isinstance(error, TroupeError) or spec not in enabled_plugins("platforms").values():
            raise
        reason = f"skipped the platform {spec.kind!r}: its plug-in raised {type(error).__name__}"
        raise PluginFailed(reason) from error
    return made


def create_account_setup(spec: PlatformSpec, settings: PlatformSettings) -> AccountSetup | None:
    """Import and create a platform's account setup, or return None if it has none."""
    return None if spec.account_setup is None else _import_attribute(spec.account_setup)(settings)


def _import_attribute(path: str) -> Any:
    module, _, function = path.partition(":")
    return getattr(import_module(module), function)
