"""The available platforms; the code of a platform is imported only when it starts.

To add a platform, write a package with a `SPEC` and add one line here, or write a plug-in.
"""

from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name

from bot.chat.outgoing import Limits
from bot.errors import OutcomeUnknown, PlatformError, PluginFailed, StoreError, Unreachable
from bot.platforms.discord import SPEC as DISCORD
from bot.platforms.spec import AccountSetup, PlatformContext, PlatformSettings, PlatformSpec
from bot.platforms.telegram import SPEC as TELEGRAM
from bot.platforms.terminal import SPEC as TERMINAL
from bot.platforms.web import SPEC as WEB
from bot.ports import Platform, Surface
from bot.runtime.plugin_threads import PluginThread, use_in_plugin
from bot.runtime.plugins import plugin_name

_CALL_SECONDS = 10.0  # half the lease of an outgoing message
_ERRORS = (PlatformError, StoreError)
_SPECS = {spec.kind: spec for spec in (DISCORD, TELEGRAM, TERMINAL, WEB)}


def register(spec: PlatformSpec) -> None:
    """Add a platform before settings are read; raises `ValueError` if invalid or a duplicate."""
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
    return resolve_name(spec.limits) if spec is not None and spec.limits else None


def create_platform(
    spec: PlatformSpec, settings: PlatformSettings | None, context: PlatformContext
) -> Platform:
    """Import and create a platform, without connecting; raises `SettingsError`, `PluginFailed`."""
    if (plugin := plugin_name("platforms", spec)) is None:
        platform: Platform = resolve_name(spec.factory)(settings, context)
        return platform
    objects = {"cursors": context.cursors, "web_channels": context.web_channels}
    own = {name: value and use_in_plugin(value) for name, value in objects.items()}
    context = use_in_plugin(context, **own)
    calls = PluginThread(plugin, _CALL_SECONDS, Unreachable, _ERRORS)
    sends = replace(calls, failure=OutcomeUnknown)

    def make() -> tuple[Platform, Surface]:
        made: Platform = resolve_name(spec.factory)(settings, context)
        return made, made.surface

    made, surface = calls.make(make, PluginFailed)
    wrapped: Platform = calls.wrap(made, Platform, surface=sends.wrap(surface, Surface))
    return wrapped


def create_account_setup(spec: PlatformSpec, settings: PlatformSettings) -> AccountSetup | None:
    """Import and create a platform's account setup, or return None if it has none."""
    return None if spec.account_setup is None else resolve_name(spec.account_setup)(settings)
