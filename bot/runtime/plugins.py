"""Load and call plug-ins: entry points of installed packages, if TROUPE_PLUGINS lists their names.

An entry point is in a group such as `troupe.tools` (`GROUPS`). Its module declares the version of
the interface it was written for: `TROUPE_API = 1`. A plug-in that fails is reported and does not
affect anything else (docs/architecture.md).
"""

import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any, TypeVar

from bot.chat.incoming import to_storable_text
from bot.errors import PluginFailed
from bot.runtime.tasks import wait_or_abandon
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.value_class import value_class

API = 1
GROUPS = tuple(
    f"troupe.{kind}"
    for kind in ("platforms", "backends", "tools", "importers", "embedders", "hooks")
)
problems: dict[str, str] = {}
"""For each plug-in that was not loaded, by name: the reason, in one line."""
HOOKS: Mapping[str, dict[str, Callable[..., Any]]] = {"prompt_parts": {}, "check_answer": {}}
"""Hook functions by hook name and plug-in name. An entry point in `troupe.hooks` is a module or
object that defines at least one of these functions."""
_values: defaultdict[str, dict[str, Any]] = defaultdict(dict)  # by group and name
_HOOK_SECONDS = 0.2
_MAX_PARTS = 20
_MAX_THREADS = 4  # per plug-in, with calls that have not returned
Result = TypeVar("Result")


def enable_plugins(names: Iterable[str], register: Mapping[str, Callable[[Any], None]]) -> None:
    """Load the plug-ins with these names, each once in a process; record failures in `problems`.

    `register` maps some groups to a function that validates a plug-in and adds it to the built-in
    ones, or raises ValueError.
    """
    for name in names:
        if name in problems or any(name in found for found in _values.values()):
            continue
        found = [one for group in GROUPS for one in entry_points(group=group, name=name)]
        if not found:
            installed = {one.name for group in GROUPS for one in entry_points(group=group)}
            known = ", ".join(sorted(installed)) or "none"
            problems[name] = f"no plug-in {name!r} is installed; installed plug-ins: {known}"
        for one in found:
            if (problem := _load_plugin(one, register)) is not None:
                package = one.dist.name if one.dist else one.value
                problems[name] = f"the plug-in {name!r} of {package} {problem}"


def enabled_plugins(group: str) -> Mapping[str, Any]:
    """Return the loaded plug-ins of a group by name."""
    return _values[group]


def plugin_name(group: str, value: object) -> str | None:
    """Return the name of the plug-in that provides a value, or None for a built-in value."""
    return next((name for name, one in _values[group].items() if one is value), None)


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


async def prompt_parts(name: str, hook: Callable[..., Any], context: HookContext) -> Sequence[str]:
    """Call a plug-in's hook and return the texts to add to a prompt; raises `PluginFailed`."""

    def run() -> list[str]:
        parts = hook(context)
        if isinstance(parts, str):  # or each character would become a part
            raise TypeError
        return [_clean_hook_text(one) for one in islice(parts, _MAX_PARTS)]

    return await call_in_thread(name, run, _HOOK_SECONDS)


async def check_answer(name: str, hook: Callable[..., Any], text: str) -> str | Refusal:
    """Call a plug-in's hook; return the changed answer or a refusal; raises `PluginFailed`."""

    def run() -> str | Refusal:
        checked = hook(text)
        if not isinstance(checked, Refusal):
            return _clean_hook_text(checked)
        reason: object = checked.reason
        is_given = isinstance(reason, str) and reason.strip()
        return Refusal(_clean_hook_text(reason) if is_given else "")

    return await call_in_thread(name, run, _HOOK_SECONDS)


def _clean_hook_text(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError
    return mask_pasted_tokens(to_storable_text(text))


def _load_plugin(one: EntryPoint, register: Mapping[str, Callable[[Any], None]]) -> str | None:
    group = one.group.removeprefix("troupe.")
    try:
        value = one.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 # third-party code
        reason = str(error) if isinstance(error, ImportError | AttributeError) else ""
        return f"cannot be loaded: {reason or type(error).__name__}"
    api = getattr(sys.modules[one.module], "TROUPE_API", None)
    if api != API:
        return (
            f"was written for version {api} of Troupe's plug-in interface, but this is version"
            f" {API}; install a matching version"
        )
    try:
        register.get(group, lambda _value: None)(value)
    except Exception as error:  # noqa: BLE001 # a third-party object
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        return f"cannot be used: {reason}"
    _values[group][one.name] = value
    if group == "hooks":
        for function, found in HOOKS.items():
            if callable(hook := getattr(value, function, None)):
                found[one.name] = hook
    return None


async def call_in_thread(name: str, run: Callable[[], Result], seconds: float) -> Result:
    """Run a plug-in in a thread, which is abandoned after `seconds`; raises `PluginFailed`."""
    thread = f"plug-in {name}"
    if sum(one.name == thread for one in threading.enumerate()) >= _MAX_THREADS:
        raise PluginFailed("its earlier calls are still running")
    result = Future[Result]()
    result.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result.set_result(run())
        except BaseException as error:  # noqa: BLE001 # third-party code, even SystemExit
            result.set_exception(PluginFailed(type(error).__name__))

    threading.Thread(target=work, name=thread, daemon=True).start()
    try:
        return await wait_or_abandon(seconds, asyncio.wrap_future(result))
    except TimeoutError:
        raise PluginFailed(f"it took more than {seconds:g} s") from None
