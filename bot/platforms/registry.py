"""The available platforms; the code of a platform is imported only when it starts.

To add a platform, write a package with a `SPEC` and add one line here, or write a plug-in.
"""

from collections.abc import Sequence
from pkgutil import resolve_name

from bot.chat.outgoing import Limits
from bot.errors import OutcomeUnknown, PlatformError, PluginFailed, SettingsError, StoreError
from bot.platforms.discord import SPEC as DISCORD
from bot.platforms.spec import AccountSetup, PlatformContext, PlatformSettings, PlatformSpec
from bot.platforms.telegram import SPEC as TELEGRAM
from bot.platforms.terminal import SPEC as TERMINAL
from bot.platforms.web import SPEC as WEB
from bot.ports import Platform, Surface
from bot.runtime.plugin_threads import PluginThread, wrap_for_plugin, wrap_plugin
from bot.runtime.plugins import plugin_name

_TIMEOUT_SECONDS = 10.0  # half the lease of an outgoing message
_SPECS_BY_KIND = {spec.kind: spec for spec in (DISCORD, TELEGRAM, TERMINAL, WEB)}


def register(spec: PlatformSpec) -> None:
    """Add a platform before settings are read; raises `SettingsError` if invalid."""
    if not isinstance(spec, PlatformSpec):
        raise SettingsError("not a PlatformSpec")
    if spec.settings and any(one.is_required() for one in spec.settings.model_fields.values()):
        raise SettingsError("some of its settings have no default")
    if spec.kind in _SPECS_BY_KIND:
        raise SettingsError(f"the platform {spec.kind!r} is already registered")
    _SPECS_BY_KIND[spec.kind] = spec


def platform_specs() -> Sequence[PlatformSpec]:
    return tuple(_SPECS_BY_KIND.values())


def terminal_platforms() -> Sequence[PlatformSpec]:
    """Return the platforms whose chat is in the terminal where Troupe was started."""
    return [spec for spec in _SPECS_BY_KIND.values() if spec.uses_terminal]


def companion_platforms() -> Sequence[PlatformSpec]:
    """Return the platforms that run whenever the web console runs."""
    return [spec for spec in _SPECS_BY_KIND.values() if spec.is_companion]


def platforms_to_imitate() -> Sequence[str]:
    """Return the names of the platforms that web channels can imitate."""
    return [spec.kind for spec in _SPECS_BY_KIND.values() if spec.limits is not None]


def find_platform_limits(kind: str) -> Limits | None:
    """Return the limits of a platform's channels, or None if they are unknown."""
    spec = _SPECS_BY_KIND.get(kind)
    return resolve_name(spec.limits) if spec is not None and spec.limits else None


def create_platform(
    spec: PlatformSpec, settings: PlatformSettings | None, context: PlatformContext
) -> Platform:
    """Import and create a platform, without connecting; raises `SettingsError`, `PluginFailed`."""
    if (plugin := plugin_name("platforms", spec)) is None:
        platform: Platform = resolve_name(spec.factory)(settings, context)
        return platform
    cursor_store = context.cursor_store and wrap_for_plugin(context.cursor_store)
    context = wrap_for_plugin(context, cursor_store=cursor_store, web_channels=None)
    thread = PluginThread(plugin, _TIMEOUT_SECONDS, OutcomeUnknown, (PlatformError, StoreError))
    call_factory = thread.call_factory
    platform = call_factory(lambda: resolve_name(spec.factory)(settings, context), PluginFailed)
    surface = wrap_plugin(call_factory(lambda: platform.surface, PluginFailed), Surface, thread)
    wrapped_platform: Platform = wrap_plugin(platform, Platform, thread, surface=surface)
    return wrapped_platform


def create_account_setup(spec: PlatformSpec, settings: PlatformSettings) -> AccountSetup | None:
    """Import and create a platform's account setup, or return None if it has none."""
    return None if spec.account_setup is None else resolve_name(spec.account_setup)(settings)
