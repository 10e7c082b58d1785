"""Specs of backend packages, and the settings common to all providers."""

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bot.chat.prompt import Usage
from bot.value_class import value_class


class ModelPrice(BaseModel):
    """A model's price per million tokens, in US dollars."""

    model_config = ConfigDict(extra="forbid")

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    cache_write: float | None = Field(None, ge=0)

    def cost(self, usage: Usage) -> int:
        """Return what the used tokens cost, in millionths of a US dollar, rounded up."""
        cached_price = self.input if self.cached is None else self.cached
        cache_write_price = self.input if self.cache_write is None else self.cache_write
        uncached_tokens = max(0, usage.prompt_tokens - usage.cached_tokens - usage.written_tokens)
        return math.ceil(
            uncached_tokens * self.input
            + usage.cached_tokens * cached_price
            + usage.written_tokens * cache_write_price
            + usage.output_tokens * self.output
        )


FREE = ModelPrice(input=0, output=0)


class ProviderSettings(BaseModel):
    """Settings of a service or engine. Each kind of backend has a subclass."""

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(description="The kind of backend.")
    model: str | None = Field(
        None, description='The name of the model that presets call "default".'
    )
    prices: dict[str, ModelPrice] = Field(
        {},
        description="What a million tokens cost in US dollars, by model name, such as "
        '{"gpt-4o-mini": {"input": 0.15, "output": 0.6, "cached": 0.075}}. The name `*` stands for '
        "every other model. Without a price, the cost is unknown.",
    )
    max_in_flight: int | None = Field(
        None,
        ge=1,
        description="The maximum number of concurrent requests to the provider, across all"
        " processes; others wait. By default there is no limit.",
    )
    first_token_seconds: float = Field(
        30,
        gt=0,
        description="How many seconds the first token of an answer may take; by default 300 for"
        " servers on this machine or in its network, which may have to load the model first.",
    )
    idle_seconds: float = Field(
        15, gt=0, description="How many seconds each further token may take."
    )
    total_seconds: float = Field(
        180,
        gt=0,
        description="How many seconds a whole answer may take; by default 600 for servers on this"
        " machine or in its network.",
    )

    @field_validator("prices", mode="before")
    @classmethod
    def _read_prices(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError('write JSON: {"model": {"input": 0.15, "output": 0.6}}') from None

    def find_price(self, model: str) -> ModelPrice | None:
        return self.prices.get(model) or self.prices.get("*")

    def with_defaults(self, provider: str) -> Self:
        """Return a copy with the provider's defaults; raise ValueError if a setting is missing."""
        del provider
        return self


@value_class(kw_only=True)
class BackendSpec:
    """A kind of backend; paths to its code are written "module:function"."""

    kind: str

    settings: type[ProviderSettings]

    factory: str
    """The path of a function (provider, settings, data_dir, renderer) -> Backend."""

    provider_ids: Collection[str] = ()
    """Ids of providers that use this kind unless their settings name another one."""

    providers_without_settings: Collection[str] = ()
    """Provider ids that presets may use without any settings."""

    calls_tools: bool = False

    parameter_check: str | None = None
    """The path of a function, if any: (settings, parameters) -> list of error lines."""

    preparation: str | None = None
    """The path of an async function, if any: (provider, model, settings, data_dir, progress)."""

    model_trials: str | None = None
    """The path of a function, if any: (settings, data_dir, renderer) -> (model, trial) pairs."""


class ModelFileSettings(ProviderSettings):
    """Settings of a provider that runs model files on this machine."""

    model_path: Path | None = Field(
        None, description='The GGUF file of the model that presets call "default".'
    )
    projector_path: Path | None = Field(
        None, description="A second GGUF file (mmproj-....gguf), which lets the model see images."
    )
    context_tokens: int = Field(4096, ge=256, description="Context tokens per conversation.")
    parallel: int = Field(
        2, ge=1, le=64, description="How many conversations are answered at the same time."
    )
