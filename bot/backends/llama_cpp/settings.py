"""Settings of providers of the kind `llama_cpp`, which run local model files."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, NonNegativeInt
from typing_extensions import override

from bot.backends.spec import FREE, ModelFileSettings, ModelPrice, ProviderSettings


class LlamaCppSettings(ModelFileSettings):
    """Settings of an engine for GGUF files, which by default runs the included model."""

    kind: Literal["llama_cpp"] = "llama_cpp"
    engine: Literal["auto", "llama_cpp_python", "xllamacpp"] = Field(
        "auto", description="Which build of llama.cpp runs the model; by default the installed one."
    )
    most_waiting: int = Field(
        50, ge=0, description="How many requests may wait for a model; more are rejected."
    )
    saved_mib: int = Field(
        4096,
        ge=0,
        description="The disk space, in MiB, for saved KV slots (the processed prompts of"
        " conversations), which make later answers faster; 0: none are saved.",
    )
    saved_days: float = Field(
        7, gt=0, description="For how many days saved KV slots (processed prompts) are kept."
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of the engine; by default all cores but one."
    )
    template_sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="The SHA-256 of the chat template in the model's file; a file with any other"
        " template is refused.",
    )
    gpu_layers: Literal["auto"] | NonNegativeInt = Field(
        "auto",
        description="Model layers to offload to the GPU; by default all, if the engine"
        " finds a GPU.",
    )

    @override
    def find_price(self, model: str) -> ModelPrice | None:
        return super().find_price(model) or FREE


def find_local_settings(providers: Mapping[str, ProviderSettings]) -> LlamaCppSettings:
    """Return the settings of `local`, else of another local provider, else the defaults."""
    provider_names = sorted(providers, key=lambda name: name != "local")
    candidates = (providers[name] for name in provider_names)
    return next(
        (each for each in candidates if isinstance(each, LlamaCppSettings)), LlamaCppSettings()
    )
