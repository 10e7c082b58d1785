"""The roles of a process (see `troupe run --role`), and the options of a run."""

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
    """A part of the service's work, which any number of processes can share."""

    GATEWAY = "gateway"
    """Receives events from the platforms and stores them."""

    WORKER = "worker"
    """Answers stored messages, and shows unfinished answers."""

    SENDER = "sender"
    """Sends queued messages, reconciles unknown outcomes, and deletes expired rows."""

    CONSOLE = "console"
    """Serves the operators' web pages."""


ALL_ROLES = frozenset(Role)
_ALL_ROLES_NAME = "all"
_SETUP_HINT = "is not set up (see docs/settings.md); the platforms that are set up are"


@value_class
class RunOptions:
    """The options of a run of the service."""

    serves_http: bool = True
    """Whether to serve HTTP: health checks and, in consoles, the operators' pages."""
    answers_messages: bool = True
    """Whether to process messages. If not, this process runs beside a service to send operators'
    prompts: it neither locks the data directory nor prepares models."""
    preset: str | None = None
    """The preset that answers in this run, in a separate chat; None for the default preset."""
    model: str | None = None
    """The model for all presets in this run, "model" or "provider/model"; None for no change."""
    roles: frozenset[Role] = ALL_ROLES
    """The roles of this process."""

    @property
    def shares_work(self) -> bool:
        """Whether other processes run the roles that this process lacks."""
        return self.roles != ALL_ROLES


def parse_roles(name_list: str) -> frozenset[Role]:
    """Parse --role: role names separated by commas, or `all`; raises `SettingsError`."""
    roles: set[Role] = set()
    for name in _split_names(name_list):
        if name == _ALL_ROLES_NAME:
            roles |= ALL_ROLES
        elif name in ALL_ROLES:
            roles.add(Role(name))
        else:
            raise SettingsError(f"--role: {_explain_bad_name(name, [*ALL_ROLES, _ALL_ROLES_NAME])}")
    if not roles:
        role_names = ", ".join([*sorted(ALL_ROLES), _ALL_ROLES_NAME])
        raise SettingsError(f"--role needs at least one of {role_names}")
    return frozenset(roles)


def select_platforms(name_list: str, candidates: Sequence[PlatformSpec]) -> Sequence[PlatformSpec]:
    """Return the platforms that --platforms names; raises `SettingsError` if not configured."""
    specs = {spec.kind: spec for spec in candidates}
    names_to_select = _split_names(name_list)
    for name in names_to_select:
        if name not in specs:
            raise SettingsError(f"--platforms: {_explain_bad_name(name, list(specs), _SETUP_HINT)}")
    if not names_to_select:
        raise SettingsError("--platforms: name at least one platform, such as telegram")
    return [specs[name] for name in dict.fromkeys(names_to_select)]


def _split_names(name_list: str) -> list[str]:
    return [name.strip().lower() for name in name_list.split(",") if name.strip()]


def _explain_bad_name(name: str, known_names: Sequence[str], problem: str = "is not one of") -> str:
    closest_names = difflib.get_close_matches(name, known_names, n=1)
    hint = f"; did you mean {str(closest_names[0])!r}?" if closest_names else ""
    return f"{name!r} {problem}: {', '.join(sorted(known_names)) or 'none'}{hint}"


def replace_model(
    presets: Mapping[str, Preset], model: str | None, settings: Settings
) -> Mapping[str, Preset]:
    """Return copies of the presets, changed to use only `model` ("name" or "provider/name")."""
    if model is None:
        return presets
    provider, separator, name = model.partition("/")
    changes: dict[str, object] = {"model": model, "fallbacks": ()}
    if separator and name and provider in settings.providers:
        changes |= {"provider": provider, "model": name}
    changed_presets = {}
    for key, preset in presets.items():
        provider_settings = settings.providers.get(str(changes.get("provider", preset.provider)))
        has_tools = provider_settings is None or backend_spec(provider_settings.kind).calls_tools
        tool_changes = {} if has_tools else {"tools": (), "mcp_servers": ()}
        changed_presets[key] = preset.model_copy(update={**changes, **tool_changes})
    return changed_presets
