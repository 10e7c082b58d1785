"""Load and call plug-ins: entry points of installed packages, if TROUPE_PLUGINS lists their names.

An entry point is in a group such as `troupe.tools` (see `GROUPS`). Its module declares the version
of the interface it was written for: `TROUPE_API = 1`. A plug-in that fails is reported and does not
affect anything else (docs/architecture.md).
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any

from bot.chat.incoming import to_storable_text
from bot.errors import PluginFailed, SettingsError
from bot.runtime.plugin_threads import PluginThread
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.value_class import value_class

API_VERSION = 1
GROUPS = ("platforms", "backends", "tools", "importers", "embedders", "hooks")
load_errors: dict[str, str] = {}
"""The plug-ins that were not loaded, by name, each with a one-line reason."""
HOOKS: Mapping[str, dict[str, Callable[..., Any]]] = {"prompt_parts": {}, "check_answer": {}}
"""Hook functions by hook name and plug-in name. An entry point in `troupe.hooks` is a module or
object that defines at least one of these functions."""
_enabled_plugins: defaultdict[str, dict[str, Any]] = defaultdict(dict)  # by group and name
_TIMEOUT_SECONDS = 0.2
_MAX_PROMPT_PARTS = 20


def enable_plugins(names: Iterable[str], registrars: Mapping[str, Callable[[Any], None]]) -> None:
    """Load these plug-ins unless they are already loaded; record failures in `load_errors`.

    `registrars` maps some groups to a function that validates and registers a plug-in, or raises
    `SettingsError`.
    """
    for name in names:
        if name in load_errors or any(name in plugins for plugins in _enabled_plugins.values()):
            continue
        entries = [entry for group in GROUPS for entry in entry_points(group=f"troupe.{group}")]
        matching_entries = [entry for entry in entries if entry.name == name]
        if not matching_entries:
            all_names = ", ".join(sorted({entry.name for entry in entries})) or "none"
            load_errors[name] = f"no plug-in {name!r} is installed; installed plug-ins: {all_names}"
        for entry in matching_entries:
            try:
                _load_plugin(entry, registrars)
            except (Exception, SystemExit) as error:  # noqa: BLE001 # third-party code
                has_safe_text = isinstance(error, ImportError | AttributeError | SettingsError)
                reason = (has_safe_text and str(error)) or type(error).__name__
                package = entry.dist.name if entry.dist else entry.value
                load_errors[name] = f"the plug-in {name!r} of {package} cannot be used: {reason}"


def _load_plugin(entry: EntryPoint, registrars: Mapping[str, Callable[[Any], None]]) -> None:
    plugin, group = entry.load(), entry.group.removeprefix("troupe.")
    if (version := getattr(sys.modules[entry.module], "TROUPE_API", None)) != API_VERSION:
        raise SettingsError(
            f"it was written for version {version} of Troupe's plug-in interface, but this Troupe"
            f" has version {API_VERSION}; install a matching version"
        )
    if group in registrars:
        registrars[group](plugin)
    if group == "hooks":
        for hook_name, hooks_by_plugin in HOOKS.items():
            if callable(hook := getattr(plugin, hook_name, None)):
                hooks_by_plugin[entry.name] = hook
    _enabled_plugins[group][entry.name] = plugin


def enabled_plugins(group: str) -> Mapping[str, Any]:
    """Return the loaded plug-ins of a group by name."""
    return _enabled_plugins[group]


def plugin_name(group: str, plugin: object) -> str | None:
    """Return the name of the plug-in that provides a value, or None for a built-in value."""
    return next((name for name, value in _enabled_plugins[group].items() if value is plugin), None)


@value_class
class HookContext:
    """The argument of the hook `prompt_parts`: facts about the message being answered."""

    preset: str
    platform: str
    channel: str
    author: str
    """The display name of the message's author."""
    text: str
    at: datetime


@value_class
class Refusal:
    """The result of the hook `check_answer` for an answer that must not be shown."""

    reason: str = ""
    """The reason, which is shown in the answer's receipt."""


async def get_prompt_parts(
    name: str, hook: Callable[..., Any], context: HookContext
) -> Sequence[str]:
    """Call a plug-in's hook and return the texts to add to a prompt; raises `PluginFailed`."""

    async def run() -> list[str]:
        parts = hook(context)
        if isinstance(parts, str):  # otherwise, each character would become a part
            raise TypeError
        return [_clean_hook_text(part) for part in islice(parts, _MAX_PROMPT_PARTS)]

    return await PluginThread(name, _TIMEOUT_SECONDS, PluginFailed).call("hook", run)


async def check_answer(name: str, hook: Callable[..., Any], text: str) -> str | Refusal:
    """Call a plug-in's hook, and return the answer to show or a refusal; raises `PluginFailed`."""

    async def run() -> str | Refusal:
        hook_result = hook(text)
        if not isinstance(hook_result, Refusal):
            return _clean_hook_text(hook_result)
        reason: object = hook_result.reason
        has_reason = isinstance(reason, str) and reason.strip()
        return Refusal(_clean_hook_text(reason) if has_reason else "")

    return await PluginThread(name, _TIMEOUT_SECONDS, PluginFailed).call("hook", run)


def _clean_hook_text(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError
    return mask_pasted_tokens(to_storable_text(text))
