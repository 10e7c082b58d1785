"""Settings of providers of the kind `anthropic`."""

from typing import Literal, Self

from pydantic import Field
from typing_extensions import override

from bot.backends.chat_completions.settings import HttpProviderSettings, provider_address

ADDRESS = "https://api.anthropic.com/v1"


class AnthropicSettings(HttpProviderSettings):
    """Settings of a service with Anthropic's Messages API, by default Anthropic itself."""

    kind: Literal["anthropic"] = "anthropic"
    sees: Literal["images", "text"] = Field(
        "images", description="Whether the service's models can see pictures that people send."
    )
    prompt_cache: Literal["off", "5m", "1h"] = Field(
        "5m", description="How long the service caches the stable beginning of a prompt."
    )

    @override
    def with_defaults(self, provider: str) -> Self:
        base_url = provider_address(self, provider, {provider: ADDRESS}).rstrip("/")
        if not base_url.endswith("/v1"):  # other programs' ANTHROPIC_BASE_URL omits the version
            base_url += "/v1"
        return self.model_copy(update={"base_url": base_url})
