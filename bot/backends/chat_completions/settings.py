"""Settings common to all providers that are reached over HTTP."""

import base64
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from bot.backends.spec import ProviderSettings
from bot.runtime.addresses import HttpAddress, is_http_address, split_credentials
from bot.runtime.secret_file import read_setting_secrets


class HttpProviderSettings(ProviderSettings):
    """A service's address and credentials."""

    base_url: HttpAddress | None = Field(
        None, description="The address of the API; well-known providers need none."
    )
    api_key: SecretStr | None = Field(
        None, description="The API key of the account with the provider."
    )
    api_keys: tuple[SecretStr, ...] = Field(
        (),
        description="Several keys, separated by commas, that are used in turn. A key that is"
        " refused or used up is skipped for a while.",
    )
    api_key_file: Path | None = Field(
        None,
        description="A file with one or more keys, one per line, such as a mounted secret. It may"
        " be replaced while the service runs.",
    )
    stored_keys: bool = Field(
        False,
        description="Whether the provider also has keys that are stored in the database, encrypted"
        " (`troupe keys add` stores them).",
    )
    basic_auth: SecretStr | None = Field(
        None,
        description="The user name and password for a proxy in front of the API, as name:password."
        " The address may contain them instead: http://name:password@host/v1.",
    )
    connect_seconds: float = Field(
        5, gt=0, description="How many seconds connecting to the provider may take."
    )

    @model_validator(mode="before")
    @classmethod
    def _move_credentials_to_basic_auth(cls, value: object) -> object:
        """Move a name and password from the address, which is not secret, to `basic_auth`."""
        address = value.get("base_url") if isinstance(value, dict) else None
        if not (isinstance(value, dict) and isinstance(address, str) and is_http_address(address)):
            return value
        address, credentials = split_credentials(address)
        auth_fields = {"basic_auth": credentials} if credentials else {}
        return {**value, "base_url": address, **auth_fields}

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @model_validator(mode="after")
    def _read_key_file(self) -> Self:
        """Add the key file's keys to `api_keys`, so that logs mask every key."""
        if self.api_key_file is None:
            return self
        key_lines = read_setting_secrets(self.api_key_file, "the keys")
        if not key_lines:
            raise ValueError(f"there is no key in {self.api_key_file}")
        known_keys = {key.get_secret_value() for key in self.keys}
        new_keys = tuple(SecretStr(line) for line in key_lines if line not in known_keys)
        self.api_keys = (*self.api_keys, *new_keys)
        return self

    @property
    def keys(self) -> tuple[SecretStr, ...]:
        return (*((self.api_key,) if self.api_key else ()), *self.api_keys)

    @property
    def basic_auth_headers(self) -> dict[str, str]:
        if self.basic_auth is None:
            return {}
        credentials = base64.b64encode(self.basic_auth.get_secret_value().encode()).decode()
        return {"Authorization": f"Basic {credentials}"}


def provider_address(
    settings: HttpProviderSettings,
    provider: str,
    default_addresses: Mapping[str, str],
    keyless_providers: Collection[str] = (),
) -> str:
    """Return the provider's address; raises ValueError if that or a required key is missing."""
    prefix = f"TROUPE_PROVIDERS__{provider.upper()}__"
    base_url = settings.base_url or default_addresses.get(provider)
    if base_url is None:
        raise ValueError(f"provider {provider!r} has no address; set {prefix}BASE_URL")
    has_keys = bool(settings.keys) or settings.stored_keys
    if not has_keys and settings.base_url is None and provider not in keyless_providers:
        raise ValueError(f"provider {provider!r} has no key; set {prefix}API_KEY")
    return base_url
