"""What a backend package declares about itself, and the settings that every provider has."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field


class ProviderSettings(BaseModel):
    """One service or engine that answers prompts; its id is a preset's `provider`.

    Every kind of backend has its own model of settings, derived from this one.
    """

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(description="The kind of backend.")
    model: str | None = Field(
        None, description='The model that a preset means by "default", by its name.'
    )
    max_in_flight: int | None = Field(
        None,
        ge=1,
        description="How many answers are requested at once, by all processes together; further"
        " ones wait. By default as many as are asked for.",
    )
    first_token_seconds: float = Field(
        30, gt=0, description="How long the first token of an answer may take."
    )
    idle_seconds: float = Field(15, gt=0, description="How long each further token may take.")
    total_seconds: float = Field(180, gt=0, description="How long a whole answer may take.")

    def completed(self, provider: str) -> Self:
        """Return a copy with the values that a provider's id implies.

        Raises:
            ValueError: a setting is missing; the text names it.
        """
        del provider
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """One kind of backend: its settings and where its code is, without importing that code.

    Code is named as "module:function" and imported when it is called: a vendor's library takes up
    to a second.
    """

    kind: str
    """The value of TROUPE_PROVIDERS__<ID>__KIND."""

    settings: type[ProviderSettings]
    """The model of a provider's settings."""

    factory: str
    """Where `make(provider, settings, data_dir, renderer) -> Backend` is."""

    provider_ids: Collection[str] = ()
    """Ids of providers that are of this kind unless their settings name another one."""

    providers_without_settings: Collection[str] = ()
    """Those among them that presets can use although nothing is set: they run on this machine."""

    parameter_check: str | None = None
    """Where `parameter_problems(settings, parameters) -> list[str]` is.

    It returns a line for each parameter of a preset that this kind does not understand. Without it
    parameters are checked by the service when they are used.
    """

    preparation: str | None = None
    """Where `async prepare_model(model, settings, data_dir, progress)` is.

    It downloads what a model needs before the start, and raises `SettingsError` if that is missing.
    """

    model_trials: str | None = None
    """Where `model_trials(settings, data_dir, renderer)` is.

    It yields a name and an awaitable report for each model on this machine, for `troupe check`.
    """
