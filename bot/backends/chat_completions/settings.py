"""The settings of providers that are reached over HTTP."""

from collections.abc import Collection, Mapping

from pydantic import Field, SecretStr

from bot.backends.spec import ProviderSettings


class HttpProviderSettings(ProviderSettings):
    """Where a service is and how it is authenticated to."""

    base_url: str | None = Field(
        None, description="The address of the API; well-known providers need none."
    )
    api_key: SecretStr | None = Field(None, description="The key of the account.")
    connect_seconds: float = Field(5, gt=0, description="How long connecting may take.")


def well_known_address(
    settings: HttpProviderSettings,
    provider: str,
    addresses: Mapping[str, str],
    keyless: Collection[str] = (),
) -> str:
    """Return the address that was set, or the well-known one of a provider's id.

    Raises:
        ValueError: there is neither, or a well-known provider has no key.
    """
    prefix = f"TROUPE_PROVIDERS__{provider.upper()}__"
    base_url = settings.base_url or addresses.get(provider)
    if base_url is None:
        raise ValueError(f"provider {provider!r} has no address; set {prefix}BASE_URL")
    if settings.api_key is None and settings.base_url is None and provider not in keyless:
        raise ValueError(f"provider {provider!r} has no key; set {prefix}API_KEY")
    return base_url
