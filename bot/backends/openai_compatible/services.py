"""The services that Troupe knows by id or address, with their quirks (services.toml)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from bot.backends.chat_completions.quirks import NO_QUIRKS, Quirks
from bot.chat.prompt import ALL_CAPABILITIES
from bot.value_class import value_class

AZURE_PROVIDER = "azure_openai"
_AZURE_HOSTS = (
    *(".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"),
    *(".openai.azure.us", ".openai.azure.cn", ".api.cognitive.microsoft.com"),
)
_DEFAULT_API_VERSION = "2024-10-21"


def is_azure(provider: str, address: str) -> bool:
    url_parts = urlsplit(address)
    has_azure_host = (url_parts.hostname or "").endswith(_AZURE_HOSTS)
    return provider == AZURE_PROVIDER or has_azure_host or "/openai/deployments/" in url_parts.path


def read_azure_address(address: str, api_version: str | None) -> tuple[str, str | None, str | None]:
    """Split an old or new Azure address into its base URL, API version, and deployment."""
    url_parts = urlsplit(address)
    prefix, _, suffix = url_parts.path.rstrip("/").partition("/openai")
    version_in_query = next(iter(parse_qs(url_parts.query).get("api-version", ())), None)
    if not suffix and (url_parts.hostname or "").endswith(_AZURE_HOSTS):
        if prefix.startswith("/models"):  # the inference API, which has other versions
            version_in_query = None
        prefix = ""  # may be a project: /api/projects/NAME
    api_version = api_version or version_in_query
    api_root = f"{url_parts.scheme}://{url_parts.netloc}{prefix}/openai"
    deployment_match = re.match(r"/deployments/([^/]+)", suffix)
    if deployment_match or (api_version and not suffix.startswith("/v1")):
        name = unquote(deployment_match[1]) if deployment_match else None
        return api_root, api_version or _DEFAULT_API_VERSION, name
    return f"{api_root}/v1", api_version, None


_SYSTEM_FIRST_CAPABILITIES = replace(ALL_CAPABILITIES, accepts_late_system=False)
_STRICT_ORDER_CAPABILITIES = replace(
    _SYSTEM_FIRST_CAPABILITIES, accepts_repeated_roles=False, accepts_assistant_first=False
)
_CAPABILITIES_BY_ROLE_ORDER = {
    "any": ALL_CAPABILITIES,
    "system-first": _SYSTEM_FIRST_CAPABILITIES,
    "alternating": replace(ALL_CAPABILITIES, accepts_repeated_roles=False),
    "strict": _STRICT_ORDER_CAPABILITIES,
}
_OUTPUT_LIMIT_PARAMETERS = {"max_tokens", "max_completion_tokens"}
_UNKNOWN_SERVICE_QUIRKS = Quirks(capabilities=_STRICT_ORDER_CAPABILITIES)


@value_class(kw_only=True)
class KnownService:
    """A public service, or a kind of self-hosted server, such as Ollama."""

    title: str
    address: str
    quirks: Quirks
    model_quirks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Additional quirks of some models, by a pattern for the model's name."""
    is_self_hosted: bool = False
    """Whether it is self-hosted: it needs no key, costs nothing, and may have any address."""
    lists_all_models: bool = True
    """Whether its model list is complete; false if models have aliases or free-form names."""
    sees_images: bool = False
    """Whether all of its models see images; if not, a setting decides."""
    context_tokens: int | None = None


def _read_quirks(catalog_entry: dict[str, Any]) -> dict[str, Any]:
    """Remove the quirks from a catalog entry, and return them as fields of `Quirks`."""
    quirk_names = Quirks.__dataclass_fields__.keys() & catalog_entry.keys()
    quirks = {name: catalog_entry.pop(name) for name in quirk_names}
    if limit := catalog_entry.pop("limit", None):
        quirks["parameter_names"] = {
            **dict.fromkeys(_OUTPUT_LIMIT_PARAMETERS - {limit}, limit),
            **quirks.get("parameter_names", {}),
        }
    if roles := catalog_entry.pop("roles", None):
        quirks["capabilities"] = _CAPABILITIES_BY_ROLE_ORDER[roles]
    return quirks


def _read_service(catalog: Mapping[str, Mapping[str, Any]], name: str) -> KnownService:
    entry = {**catalog.get(catalog[name].get("like", ""), {}), **catalog[name]}
    entry.pop("like", None)
    quirks_by_pattern = {
        pattern: _read_quirks({**each}) for pattern, each in entry.pop("models", {}).items()
    }
    quirks = replace(NO_QUIRKS, **_read_quirks(entry))
    return KnownService(quirks=quirks, model_quirks=quirks_by_pattern, **entry)


_CATALOG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SERVICES: Mapping[str, KnownService] = {name: _read_service(_CATALOG, name) for name in _CATALOG}
SERVICE_ADDRESSES = {name: service.address for name, service in SERVICES.items() if service.address}
KEYLESS_SERVICES = frozenset(name for name, service in SERVICES.items() if service.is_self_hosted)
_SERVICES_BY_ADDRESS = {service.address: service for service in SERVICES.values()}


def find_known_service(provider: str, base_url: str) -> KnownService | None:
    """Find a service by its address or, if that is unknown, a self-hosted server by its id."""
    if base_url in _SERVICES_BY_ADDRESS:
        return _SERVICES_BY_ADDRESS[base_url]
    if is_azure(provider, base_url):
        return SERVICES[AZURE_PROVIDER]
    return SERVICES[provider] if provider in KEYLESS_SERVICES else None


@lru_cache(256)
def find_quirks(provider: str, base_url: str, model: str) -> Quirks:
    """Return a model's quirks; assume the strictest role order for an unknown service."""
    service = find_known_service(provider, base_url)
    if service is None:
        return _UNKNOWN_SERVICE_QUIRKS
    quirks = service.quirks
    for pattern, quirk_changes in service.model_quirks.items():
        if re.fullmatch(pattern, model):
            quirks = replace(quirks, **quirk_changes)
    return quirks
