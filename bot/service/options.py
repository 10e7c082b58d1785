"""The roles of a process, by default all of them (see `troupe run --role`), and its options."""

import difflib
from collections.abc import Mapping, Sequence
from enum import StrEnum

from bot.backends.registry import backend_spec
from bot.errors import SettingsError
from bot.platforms.spec import PlatformSpec
from bot.prompting.presets.preset import Preset
from bot.settings import Settings
from bot.value_class import value_class


class Role(StrEnum):
    """A role in the service; any number of processes can share it."""

    GATEWAY = "gateway"
    """Receives from the platforms and stores what it receives; loads no model."""

    WORKER = "worker"
    """Answers what is stored; keeps no connection to a platform, and edits growing answers."""

    SENDER = "sender"
    """Sends what is queued, reconciles unknown outcomes, deletes expired rows."""

    CONSOLE = "console"
    """Serves the web pages of the operators."""


ALL_ROLES = frozenset(Role)
_ALL = "all"
_NOT_SET_UP = "is not set up (docs/settings.md); set up are"


@value_class
class RunOptions:
    """The options of a run; by default, they change no settings."""

    has_port: bool = True
    """Whether to serve the health endpoints."""
    answers_messages: bool = True
    """Whether it works on messages; if not, it only sends the operator's prompts, beside a service:
    it locks no data directory and prepares no model."""
    preset: str | None = None
    """The preset that answers in this run, in a chat of its own."""
    model: str | None = None
    """The model that all presets use in this run, as "model" or "provider/model"."""
    roles: frozenset[Role] = ALL_ROLES
    """The roles of this process."""

    @property
    def shares_work(self) -> bool:
        """Whether other processes share the work."""
        return self.roles != ALL_ROLES


def parse_roles(names: str) -> frozenset[Role]:
    """Parse the value of --role: names separated by commas, or `all`; raises `SettingsError`."""
    roles: set[Role] = set()
    for name in _split_names(names):
        if name == _ALL:
            roles |= ALL_ROLES
        elif name in ALL_ROLES:
            roles.add(Role(name))
        else:
            raise SettingsError(f"--role: {_describe_unknown(name, [*ALL_ROLES, _ALL])}")
    if not roles:
        raise SettingsError(f"--role: name one of {', '.join([*sorted(ALL_ROLES), _ALL])}")
    return frozenset(roles)


def select_platforms(names: str, configured: Sequence[PlatformSpec]) -> Sequence[PlatformSpec]:
    """Return the platforms selected by --platforms; raises `SettingsError`."""
    specs = {spec.kind: spec for spec in configured}
    selected = _split_names(names)
    for name in selected:
        if name not in specs:
            raise SettingsError(f"--platforms: {_describe_unknown(name, list(specs), _NOT_SET_UP)}")
    if not selected:
        raise SettingsError("--platforms: name at least one platform, such as telegram")
    return [specs[name] for name in dict.fromkeys(selected)]


def _split_names(names: str) -> list[str]:
    return [name.strip().lower() for name in names.split(",") if name.strip()]


def _describe_unknown(name: str, known: Sequence[str], problem: str = "is not one of") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {str(near[0])!r}?" if near else ""
    there = ", ".join(sorted(known)) or "none"
    return f"{name!r} {problem}: {there}{hint}"


def replace_model(
    presets: Mapping[str, Preset], model: str | None, settings: Settings
) -> Mapping[str, Preset]:
    """Return the presets with another model, "model" or "provider/model", and no fallbacks."""
    if model is None:
        return presets
    provider, slash, name = model.partition("/")
    change: dict[str, object] = {"model": model, "fallbacks": ()}
    if slash and name and provider in settings.providers:
        change |= {"provider": provider, "model": name}
    changed = {}
    for key, preset in presets.items():
        answering = settings.providers.get(str(change.get("provider", preset.provider)))
        can_call = answering is None or backend_spec(answering.kind).calls_tools
        no_tools = {} if can_call else {"tools": (), "mcp_servers": ()}
        changed[key] = preset.model_copy(update={**change, **no_tools})
    return changed
