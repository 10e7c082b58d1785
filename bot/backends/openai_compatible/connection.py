"""Connect to an OpenAI-compatible API with the openai client's headers and the provider's key."""

import httpx2
import openai

from bot.backends.chat_completions.connection import PooledConnection, open_http_client
from bot.backends.openai_compatible.settings import OpenAISettings


class OpenAIConnection(PooledConnection):
    """Requests bypass the openai client's own methods.

    The typed objects that those make of each request cost more than sending it.
    """

    def __init__(
        self, settings: OpenAISettings, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        client = open_http_client(settings, transport)
        super().__init__(client, _headers(settings, client))


def _headers(settings: OpenAISettings, http_client: httpx2.AsyncClient) -> dict[str, str]:
    """Return the headers that the openai client sends to this provider."""
    key = settings.api_key.get_secret_value() if settings.api_key else "none"
    client = openai.AsyncOpenAI(base_url=settings.base_url, api_key=key, http_client=http_client)
    headers = {**client.default_headers, **client.auth_headers}
    # The client would send the values of OPENAI_* variables to whatever provider.
    excluded = {"OpenAI-Organization", "OpenAI-Project"}
    if settings.api_key is None:
        excluded.add("Authorization")
    return {
        name: value
        for name, value in headers.items()
        if isinstance(value, str) and name not in excluded
    }
