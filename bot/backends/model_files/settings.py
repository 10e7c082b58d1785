"""The settings of providers that run a local model file."""

from pathlib import Path

from pydantic import Field

from bot.backends.spec import ProviderSettings


class ModelFileSettings(ProviderSettings):
    """A provider's model files, and the context size of each conversation."""

    model_path: Path | None = Field(
        None, description='The GGUF file that a preset means by the model "default".'
    )
    projector_path: Path | None = Field(
        None, description="A second GGUF file (mmproj-....gguf), with which that model sees images."
    )
    context_tokens: int = Field(4096, ge=256, description="The context of each conversation.")
    parallel: int = Field(
        2, ge=1, le=64, description="How many conversations are answered at the same time."
    )
