"""Contract of the stored API keys of providers, on SQLite and on PostgreSQL."""

import pytest
from cryptography.fernet import Fernet

from bot.errors import SettingsError
from bot.storage.codec import TextEncryption
from bot.storage.fernets import KeyCipher
from bot.storage.provider_keys import ProviderKeys
from tests.fakes import FakeClock
from tests.support.store import Store

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.fixture
def encryption() -> TextEncryption:
    """Return encryption without keys, because each test has its own keys."""
    return TextEncryption()


async def test_api_keys_are_stored_rotated_and_removed(store: Store) -> None:
    stored = ProviderKeys(store.database, FakeClock())
    cipher = KeyCipher([OLD])
    await stored.add("openai", cipher.encrypt("openai", "sk-1"))
    await stored.add("groq", cipher.encrypt("groq", "gsk-2"))
    assert await stored.reencrypt_keys(KeyCipher([NEW, OLD]).rotate) == 2
    new = KeyCipher([NEW])
    found = {one.provider: new.decrypt(one.provider, one.token) for one in await stored.list_all()}
    assert found == {"openai": "sk-1", "groq": "gsk-2"}
    first, second = await stored.list_all()
    assert await stored.remove(first.number)
    assert not await stored.remove(first.number)
    assert await stored.list_all() == [second]


async def test_key_copied_to_another_provider_is_refused(store: Store) -> None:
    stored = ProviderKeys(store.database, FakeClock())
    cipher = KeyCipher([OLD])
    await stored.add("elsewhere", cipher.encrypt("openai", "sk-1"))
    [moved] = await stored.list_all()
    with pytest.raises(SettingsError, match="was encrypted for 'openai'"):
        cipher.decrypt(moved.provider, moved.token)
