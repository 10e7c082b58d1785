"""The settings of providers of the kind `openai`, and the well-known ones among them."""

from typing import Literal, Self

from pydantic import Field
from typing_extensions import override

from bot.backends.chat_completions.settings import HttpProviderSettings, well_known_address
from bot.backends.spec import FREE, BackendSpec

WELL_KNOWN = {
    "openai": "https://api.openai.com/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "moonshot": "https://api.moonshot.cn/v1",
    "zhipu": "https://open.bigmodel.cn/api/paas/v4",
    "dash_scope": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "silicon_flow": "https://api.siliconflow.cn/v1",
    "open_router": "https://openrouter.ai/api/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral_ai": "https://api.mistral.ai/v1",
    "together_ai": "https://api.together.xyz/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "vllm": "http://127.0.0.1:8000/v1",
    "llama_server": "http://127.0.0.1:8080/v1",
}
"""The addresses of providers whose id is enough to find them."""

KEYLESS = frozenset({"ollama", "lmstudio", "vllm", "llama_server"})
"""Those among them that need no API key."""

LISTING_ALL = frozenset({"ollama", "lmstudio", "vllm"})
"""Those that have no model but the ones that they list."""


_SEEING_ADDRESSES = frozenset({WELL_KNOWN["openai"], WELL_KNOWN["gemini"]})
_OLLAMA_CONTEXT_TOKENS = 4096  # its default on most machines


class OpenAISettings(HttpProviderSettings):
    """A service with OpenAI's chat completions API."""

    kind: Literal["openai"] = "openai"
    context_tokens: int | None = Field(
        None,
        ge=256,
        description="The context of its model, prompt and answer together; by default 4096 for"
        " Ollama, which cuts longer prompts without a word, and else what the service accepts.",
    )
    sees: Literal["images", "text"] | None = Field(
        None,
        description="Whether its models see the pictures that people send; by default those of"
        " OpenAI and Gemini do.",
    )
    message_names: bool | None = Field(
        None,
        description="Send speakers in the field `name` of messages as well; by default to OpenAI"
        " only, because many services reject unknown fields.",
    )

    @override
    def completed(self, provider: str) -> Self:
        base_url = well_known_address(self, provider, WELL_KNOWN, KEYLESS)
        if self.keys and self.basic_auth is not None:
            prefix = f"TROUPE_PROVIDERS__{provider.upper()}__"
            raise ValueError(
                f"provider {provider!r} has a key and a password, of which only one can be sent;"
                f" remove {prefix}API_KEY or the password in {prefix}BASE_URL"
            )
        names = self.message_names
        if names is None:
            names = base_url == WELL_KNOWN["openai"]
        context = self.context_tokens
        if context is None and provider == "ollama":
            context = _OLLAMA_CONTEXT_TOKENS
        sees = self.sees or ("images" if base_url in _SEEING_ADDRESSES else "text")
        # What runs on machines of one's own costs nothing by the token.
        prices = self.prices or ({"*": FREE} if provider in KEYLESS else {})
        found = {
            "prices": prices,
            "base_url": base_url,
            "message_names": names,
            "context_tokens": context,
            "sees": sees,
        }
        return self.model_copy(update=found)


SPEC = BackendSpec(
    kind="openai",
    settings=OpenAISettings,
    factory="bot.backends.openai_compatible.backend:make",
    provider_ids=frozenset(WELL_KNOWN),
    providers_without_settings=KEYLESS,
)
