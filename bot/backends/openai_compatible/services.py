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

AZURE = "azure_openai"
_AZURE_HOSTS = (
    *(".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"),
    *(".openai.azure.us", ".openai.azure.cn", ".api.cognitive.microsoft.com"),
)
_DEFAULT_API_VERSION = "2024-10-21"


def is_azure(provider: str, address: str) -> bool:
    parts = urlsplit(address)
    is_its_host = (parts.hostname or "").endswith(_AZURE_HOSTS)
    return provider == AZURE or is_its_host or "/openai/deployments/" in parts.path


def read_azure_address(address: str, api_version: str | None) -> tuple[str, str | None, str | None]:
    """Return the base URL, API version, and deployment in an old or new Azure address."""
    parts = urlsplit(address)
    before, _, behind = parts.path.rstrip("/").partition("/openai")
    queried = next(iter(parse_qs(parts.query).get("api-version", ())), None)
    if not behind and (parts.hostname or "").endswith(_AZURE_HOSTS):
        if before.startswith("/models"):  # the inference API, which has other versions
            queried = None
        before = ""  # may be a project: /api/projects/NAME
    api_version = api_version or queried
    root = f"{parts.scheme}://{parts.netloc}{before}/openai"
    deployment = re.match(r"/deployments/([^/]+)", behind)
    if deployment or (api_version and not behind.startswith("/v1")):
        name = unquote(deployment[1]) if deployment else None
        return root, api_version or _DEFAULT_API_VERSION, name
    return f"{root}/v1", api_version, None


_SYSTEM_FIRST = replace(ALL_CAPABILITIES, accepts_late_system=False)
_STRICT_ORDER = replace(_SYSTEM_FIRST, accepts_repeated_roles=False, accepts_assistant_first=False)
_ROLE_ORDERS = {
    "any": ALL_CAPABILITIES,
    "system-first": _SYSTEM_FIRST,
    "alternating": replace(ALL_CAPABILITIES, accepts_repeated_roles=False),
    "strict": _STRICT_ORDER,
}
_LIMIT_PARAMETERS = {"max_tokens", "max_completion_tokens"}
_UNKNOWN_QUIRKS = Quirks(accepts=_STRICT_ORDER)


@value_class(kw_only=True)
class KnownService:
    """A public service, or a kind of self-hosted server, such as Ollama."""

    title: str
    address: str
    quirks: Quirks
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Additional quirks of some models, by patterns of their names."""
    is_self_hosted: bool = False
    """Whether it is self-hosted: it needs no key, costs nothing, and may have any address."""
    lists_all: bool = True
    """Whether its model list names every usable model; false with aliases or free-form names."""
    sees_images: bool = False
    """Whether all of its models see images; if not, a setting decides."""
    context_tokens: int | None = None


def _read_quirks(entry: dict[str, Any]) -> dict[str, Any]:
    """Remove the quirks from a catalog entry, and return them as fields of `Quirks`."""
    names = Quirks.__dataclass_fields__.keys() & entry.keys()
    quirks = {name: entry.pop(name) for name in names}
    if limit := entry.pop("limit", None):
        quirks["renamed"] = {
            **dict.fromkeys(_LIMIT_PARAMETERS - {limit}, limit),
            **quirks.get("renamed", {}),
        }
    if roles := entry.pop("roles", None):
        quirks["accepts"] = _ROLE_ORDERS[roles]
    return quirks


def _read_service(catalog: Mapping[str, Mapping[str, Any]], name: str) -> KnownService:
    given = {**catalog.get(catalog[name].get("like", ""), {}), **catalog[name]}
    given.pop("like", None)
    models = {pattern: _read_quirks({**each}) for pattern, each in given.pop("models", {}).items()}
    quirks = replace(NO_QUIRKS, **_read_quirks(given))
    return KnownService(quirks=quirks, models=models, **given)


_CATALOG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SERVICES: Mapping[str, KnownService] = {name: _read_service(_CATALOG, name) for name in _CATALOG}
SERVICE_ADDRESSES = {name: service.address for name, service in SERVICES.items() if service.address}
KEYLESS_IDS = frozenset(name for name, service in SERVICES.items() if service.is_self_hosted)
_SERVICES_BY_ADDRESS = {service.address: service for service in SERVICES.values()}


def find_known_service(provider: str, base_url: str) -> KnownService | None:
    """Return the service with this address, else the self-hosted server with this id, or None."""
    if base_url in _SERVICES_BY_ADDRESS:
        return _SERVICES_BY_ADDRESS[base_url]
    if is_azure(provider, base_url):
        return SERVICES[AZURE]
    return SERVICES[provider] if provider in KEYLESS_IDS else None


@lru_cache(256)
def find_quirks(provider: str, base_url: str, model: str) -> Quirks:
    """Return a model's quirks; for an unknown service, with the strictest order of roles."""
    service = find_known_service(provider, base_url)
    if service is None:
        return _UNKNOWN_QUIRKS
    quirks = service.quirks
    for pattern, changes in service.models.items():
        if re.fullmatch(pattern, model):
            quirks = replace(quirks, **changes)
    return quirks
