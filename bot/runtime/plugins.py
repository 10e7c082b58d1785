"""Plug-ins: entry points of installed packages, which are loaded only if TROUPE_PLUGINS names them.

The entry points are in groups such as `troupe.tools` (`GROUPS`). The module of one says for which
interface it was written: `TROUPE_API = 1`. Whatever a plug-in does wrong is noted and changes
nothing else (docs/architecture.md).
"""

import asyncio
import contextlib
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from bot.errors import PluginFailed

API = 1
GROUPS = tuple(
    f"troupe.{kind}" for kind in ("platforms", "backends", "tools", "importers", "embedders")
)
problems: dict[str, str] = {}
"""Why plug-ins were not loaded, by name, a line each."""
_values: defaultdict[str, dict[str, Any]] = defaultdict(dict)  # by group and name
_MAX_THREADS = 4  # of one plug-in, whose calls have not ended
_threads: Counter[str] = Counter()
Result = TypeVar("Result")


def enable(names: Iterable[str], register: Mapping[str, Callable[[Any], None]]) -> None:
    """Load the plug-ins with these names, once in a process.

    `register` adds those of some groups to the built-in ones, and raises if they do not fit.
    """
    for name in names:
        if name in problems or any(name in found for found in _values.values()):
            continue
        found = [one for group in GROUPS for one in entry_points(group=group, name=name)]
        if not found:
            installed = {one.name for group in GROUPS for one in entry_points(group=group)}
            known = ", ".join(sorted(installed)) or "none"
            problems[name] = f"no plug-in {name!r} is installed; there are: {known}"
        for one in found:
            if (problem := _load(one, register)) is not None:
                package = one.dist.name if one.dist else one.value
                problems[name] = f"the plug-in {name!r} of {package} {problem}"


def enabled(group: str) -> Mapping[str, Any]:
    """Return the loaded plug-ins of a group by name."""
    return _values[group]


def _load(one: EntryPoint, register: Mapping[str, Callable[[Any], None]]) -> str | None:
    group = one.group.removeprefix("troupe.")
    try:
        value = one.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 # a stranger's code
        reason = str(error) if isinstance(error, ImportError | AttributeError) else ""
        return f"cannot be loaded: {reason or type(error).__name__}"
    api = getattr(sys.modules[one.module], "TROUPE_API", None)
    if api != API:
        return (
            f"is for version {api} of Troupe's interface, and this is version {API}; install"
            " another version of it"
        )
    try:
        register.get(group, lambda _value: None)(value)
    except ValueError as error:
        return f"cannot be used: {error}"
    _values[group][one.name] = value
    return None


async def call_in_thread(name: str, run: Callable[[], Result], seconds: float) -> Result:
    """Run a plug-in's code in a thread of its own, so that it blocks nobody; raises `PluginFailed`.

    A thread that does not end in time is abandoned.
    """
    if _threads[name] >= _MAX_THREADS:
        raise PluginFailed("its earlier calls have not ended")
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        _threads[name] -= 1
        if ended.done():
            return
        if error is None:
            ended.set_result(result)  # type: ignore[arg-type] # then it is one
        else:
            ended.set_exception(PluginFailed(type(error).__name__))

    def work() -> None:
        result, failure = None, None
        try:
            result = run()
        except BaseException as error:  # noqa: BLE001 # a stranger's code; SystemExit, too
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, failure)

    _threads[name] += 1
    threading.Thread(target=work, name=f"plug-in {name}", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            return await ended
    except TimeoutError:
        raise PluginFailed(f"it took more than {seconds:g} s") from None
