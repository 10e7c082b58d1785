"""Azure OpenAI: parse resource and deployment addresses as people paste them.

A resource has two APIs: `/openai/v1`, where the deployment is the request's model, and the older
`/openai/deployments/NAME`, which needs an api-version (docs/sources.md#azure).
"""

import re
from urllib.parse import parse_qs, unquote, urlsplit

PROVIDER = "azure_openai"
_HOSTS = (
    *(".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"),
    *(".openai.azure.us", ".openai.azure.cn", ".api.cognitive.microsoft.com"),
)
_DEFAULT_API_VERSION = "2024-10-21"


def is_azure(provider: str, address: str) -> bool:
    parts = urlsplit(address)
    is_its_host = (parts.hostname or "").endswith(_HOSTS)
    return provider == PROVIDER or is_its_host or "/openai/deployments/" in parts.path


def read_azure_address(address: str, api_version: str | None) -> tuple[str, str | None, str | None]:
    """Return the base URL, the api-version (older API only) and the deployment, if any."""
    parts = urlsplit(address)
    before, _, behind = parts.path.rstrip("/").partition("/openai")
    queried = next(iter(parse_qs(parts.query).get("api-version", ())), None)
    if not behind and (parts.hostname or "").endswith(_HOSTS):
        if before.startswith("/models"):  # the inference API, whose versions are others
            queried = None
        before = ""  # of a project: /api/projects/NAME
    api_version = api_version or queried
    root = f"{parts.scheme}://{parts.netloc}{before}/openai"
    deployment = re.match(r"/deployments/([^/]+)", behind)
    if deployment or (api_version and not behind.startswith("/v1")):
        name = unquote(deployment[1]) if deployment else None
        return root, api_version or _DEFAULT_API_VERSION, name
    return f"{root}/v1", api_version, None
