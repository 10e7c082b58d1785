"""What one run of the service does differently from its settings."""

from collections.abc import Mapping

from bot.backends.registry import backend_spec
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.presets.preset import Preset
from bot.service.roles import ALL_ROLES, Role
from bot.settings import Settings


@frozen_dataclass
class RunOptions:
    """The options of a command; by default everything is as the settings say."""

    has_port: bool = True
    """Whether to serve the health endpoints."""
    answers_messages: bool = True
    """Whether it works on messages; else it only asks models for the operator, beside whoever does:
    it locks no data directory and prepares no model."""
    preset: str | None = None
    """The preset that answers in this run, in a chat of its own."""
    model: str | None = None
    """The model that all presets use in this run, as "model" or "provider/model"."""
    roles: frozenset[Role] = ALL_ROLES
    """What this process does of an installation's work."""

    @property
    def shares_work(self) -> bool:
        """Whether other processes have to do a part of the work."""
        return self.roles != ALL_ROLES


def replace_model(
    presets: Mapping[str, Preset], model: str | None, settings: Settings
) -> Mapping[str, Preset]:
    """Return the presets with another model and without fallbacks; unchanged for None.

    Where its provider has no tools, they have none either.

    What stands before the first slash is the provider, if one of that name is set up.
    """
    if model is None:
        return presets
    provider, slash, name = model.partition("/")
    change: dict[str, object] = {"model": model, "fallbacks": ()}
    if slash and name and provider in settings.providers:
        change |= {"provider": provider, "model": name}
    changed = {key: preset.model_copy(update=change) for key, preset in presets.items()}
    return {key: _without_unknown_tools(preset, settings) for key, preset in changed.items()}


def _without_unknown_tools(preset: Preset, settings: Settings) -> Preset:
    provider = settings.providers.get(preset.provider)
    if provider is None or backend_spec(provider.kind).calls_tools:
        return preset
    return preset.model_copy(update={"tools": (), "mcp_servers": ()})
