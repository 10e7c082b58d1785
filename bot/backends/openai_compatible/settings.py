"""Settings of providers of the kind `openai`, with defaults for well-known services."""

from typing import Literal, Self

from pydantic import Field, PrivateAttr
from typing_extensions import override

from bot.backends.chat_completions.settings import HttpProviderSettings, provider_address
from bot.backends.openai_compatible.services import (
    KEYLESS_SERVICES,
    SERVICE_ADDRESSES,
    KnownService,
    find_known_service,
    is_azure,
    read_azure_address,
)
from bot.backends.spec import FREE
from bot.runtime.addresses import is_local_network_address

_LOCAL_SERVER_TIMEOUTS = {"first_token_seconds": 300.0, "total_seconds": 600.0}
_SESSION_HEADER = "X-Session-ID"


class OpenAISettings(HttpProviderSettings):
    """Settings of a service with OpenAI's chat completions API."""

    kind: Literal["openai"] = "openai"
    context_tokens: int | None = Field(
        None,
        ge=256,
        description="The context size of the service's model in tokens, for prompt and answer "
        "together. By default, 4096 for Ollama, which silently cuts longer prompts; for other "
        "services, what they accept.",
    )
    sees: Literal["images", "text"] | None = Field(
        None,
        description="Whether the service's models can see pictures that people send; by default"
        " only OpenAI's and Gemini's can.",
    )
    transcription_model: str | None = Field(
        None,
        description="The model that transcribes voice messages, such as whisper-1, if the service"
        " has /audio/transcriptions; by default voice messages are not transcribed.",
    )
    moderation_model: str | None = Field(
        None,
        description="The model that checks each answer before it is shown, such as"
        " omni-moderation-latest, if the service has /moderations; by default none. It also checks"
        " the answers of providers without such a model.",
    )
    session_header: str | None = Field(
        None,
        pattern="^[A-Za-z0-9-]*$",
        description="The header that lets a router in front of several servers send all turns of a "
        "conversation to the same server, for its prefix cache; the value is a keyed hash. By "
        "default X-Session-ID, but none for well-known public services. Write - to send none.",
    )
    api_version: str | None = Field(
        None,
        pattern=r"^[\w-]*$",
        description="For Azure OpenAI: the api-version for addresses in the older form; by default "
        "the one in the address. Addresses with /openai/v1 need none.",
    )
    message_names: bool | None = Field(
        None,
        description="Whether to send speakers' names in the field `name` of messages as well; by"
        " default for OpenAI only, because many services reject unknown fields.",
    )

    _is_azure: bool = PrivateAttr(default=False)

    @property
    def is_azure(self) -> bool:
        return self._is_azure

    @override
    def with_defaults(self, provider: str) -> Self:
        base_url = provider_address(self, provider, SERVICE_ADDRESSES, KEYLESS_SERVICES)
        if self.keys and self.basic_auth is not None:
            prefix = f"TROUPE_PROVIDERS__{provider.upper()}__"
            raise ValueError(
                f"provider {provider!r} has both a key and a password, but only one can be sent;"
                f" remove {prefix}API_KEY or the password in {prefix}BASE_URL"
            )
        service = find_known_service(provider, base_url)
        field_values: dict[str, object] = {"message_names": False, "sees": "text"}
        if service is not None:
            field_values["message_names"] = service.quirks.accepts_names
            field_values["context_tokens"] = service.context_tokens
            field_values["sees"] = "images" if service.sees_images else "text"
        if provider in KEYLESS_SERVICES:
            field_values["prices"] = {"*": FREE}  # self-hosted models have no price per token
        if provider in KEYLESS_SERVICES or is_local_network_address(base_url):
            field_values |= _LOCAL_SERVER_TIMEOUTS
        user_values = {name: getattr(self, name) for name in self.model_fields_set}
        field_values |= {name: value for name, value in user_values.items() if value is not None}
        field_values |= {
            "base_url": base_url,
            "session_header": self._choose_session_header(service),
        }
        settings = self.model_copy(update=field_values)
        if is_azure(provider, base_url):
            address, version, deployment = read_azure_address(base_url, self.api_version)
            settings._is_azure = True  # noqa: SLF001 # this same class
            settings.base_url, settings.api_version = address, version
            settings.model = self.model or deployment
        return settings

    def _choose_session_header(self, service: KnownService | None) -> str | None:
        if self.session_header is None:
            is_public_service = service is not None and not service.is_self_hosted
            return None if is_public_service else _SESSION_HEADER
        return self.session_header.strip("-") or None
