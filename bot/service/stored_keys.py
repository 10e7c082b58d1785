"""Put the keys that are stored in the database into the settings of their providers."""

from importlib import import_module  # noqa: TID251 # for what few installations need

from pydantic import SecretStr

from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.errors import SettingsError
from bot.runtime.clock import SystemClock
from bot.settings import Settings
from bot.storage.provider_keys.rows import SqlProviderKeys, StoredKey
from bot.storage.sql.database import database_exists, open_as_it_is


async def with_stored_keys(settings: Settings) -> Settings:
    """Return the settings with the stored keys; the same ones if no provider has any.

    Raises:
        SettingsError: a provider has none, or they cannot be decrypted.
        StoreError: the database cannot be read.
    """
    named = {
        name: provider
        for name, provider in settings.providers.items()
        if isinstance(provider, HttpProviderSettings) and provider.stored_keys
    }
    if not named:
        return settings
    cipher = import_module("bot.storage.provider_keys.cipher").KeyCipher(
        settings.all_encryption_keys
    )
    stored = await _read_keys(settings)
    providers = dict(settings.providers)
    for name, provider in named.items():
        keys = [
            SecretStr(cipher.decrypt(name, one.token)) for one in stored if one.provider == name
        ]
        if not keys:
            raise SettingsError(
                f"provider {name!r} has no stored key; run `troupe keys add {name}`, or unset"
                f" TROUPE_PROVIDERS__{name.upper()}__STORED_KEYS"
            )
        providers[name] = provider.model_copy(update={"api_keys": (*provider.api_keys, *keys)})
    return settings.model_copy(update={"providers": providers})


async def _read_keys(settings: Settings) -> list[StoredKey]:
    if not database_exists(settings.sqlalchemy_url):
        return []
    async with open_as_it_is(settings.sqlalchemy_url) as database:
        return [*await SqlProviderKeys(database, SystemClock()).read()]
