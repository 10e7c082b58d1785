"""Connect to an OpenAI-compatible API with the provider's key."""

from pathlib import Path

from pydantic import SecretStr

from bot import __version__
from bot.backends.chat_completions.connections.pooled_connection import PooledConnection
from bot.backends.openai_compatible.settings import OpenAISettings


class OpenAIConnection(PooledConnection):
    """Requests with the headers that these APIs need, and with one of the keys."""

    def __init__(
        self,
        settings: OpenAISettings,
        key: SecretStr | None,
        unix_socket: Path | None = None,
        content_type: str = "application/json",
    ) -> None:
        super().__init__(
            settings,
            _headers(settings, key, content_type),
            unix_socket,
            settings.request_path("/models"),
        )


def _headers(settings: OpenAISettings, key: SecretStr | None, content_type: str) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Content-Type": content_type,
        "User-Agent": f"troupe/{__version__}",
        **settings.basic_auth_headers,
    }
    if key is not None and settings.has_api_key_header:
        headers["api-key"] = key.get_secret_value()
    elif key is not None:
        headers["Authorization"] = f"Bearer {key.get_secret_value()}"
    return headers
