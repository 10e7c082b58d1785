"""The settings of providers that are reached over HTTP."""

import base64
from collections.abc import Collection, Mapping

from pydantic import Field, SecretStr, model_validator

from bot.backends.spec import ProviderSettings
from bot.runtime.addresses import HttpAddress, is_http_address, split_credentials


class HttpProviderSettings(ProviderSettings):
    """Where a service is and how it is authenticated to."""

    base_url: HttpAddress | None = Field(
        None, description="The address of the API; well-known providers need none."
    )
    api_key: SecretStr | None = Field(None, description="The key of the account.")
    basic_auth: SecretStr | None = Field(
        None,
        description="name:password for a proxy in front of the API. They may stand in the address"
        " instead: http://name:password@host/v1.",
    )
    connect_seconds: float = Field(5, gt=0, description="How long connecting may take.")

    @model_validator(mode="before")
    @classmethod
    def _take_credentials_out_of_address(cls, given: object) -> object:
        """Move name and password from the address, which is shown, to `basic_auth`."""
        address = given.get("base_url") if isinstance(given, dict) else None
        if not (isinstance(given, dict) and isinstance(address, str) and is_http_address(address)):
            return given
        address, credentials = split_credentials(address)
        return {
            **given,
            "base_url": address,
            **({"basic_auth": credentials} if credentials else {}),
        }

    @property
    def basic_auth_headers(self) -> dict[str, str]:
        """The header that carries `basic_auth`; none without it."""
        if self.basic_auth is None:
            return {}
        encoded = base64.b64encode(self.basic_auth.get_secret_value().encode()).decode()
        return {"Authorization": f"Basic {encoded}"}


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
