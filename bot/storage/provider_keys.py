"""Encrypted API keys of providers, stored in SQL."""

from collections.abc import Callable, Sequence

from bot.storage.database import ClockStore, run_readonly, transaction
from bot.storage.statements import SQL, Unit
from bot.value_class import value_class


@value_class
class StoredKey:
    number: int
    provider: str
    token: str
    """The encrypted key."""
    added_at: float
    """When the key was added, in Unix seconds."""


class ProviderKeys(ClockStore):
    @transaction
    def add(self, provider: str, token: str) -> Unit[None]:
        yield SQL["add_key"].query(provider=provider, token=token, added_at=self._clock.now())

    @run_readonly
    def list_all(self) -> Unit[Sequence[StoredKey]]:
        """Return all keys, oldest first."""
        return [StoredKey(*row) for row in (yield SQL["keys"].query_alone())]

    @transaction
    def remove(self, number: int) -> Unit[bool]:
        """Remove a key; return False if no key has this number."""
        return bool((yield SQL["remove_key"].query(row=number)))

    @transaction
    def reencrypt_keys(self, reencrypt: Callable[[str, str], str]) -> Unit[int]:
        """Re-encrypt all keys, or none if `reencrypt` raises; return the number of keys."""
        keys = yield SQL["keys"].query()
        for number, provider, token, _ in keys:
            yield SQL["replace_key"].query(row=number, token=reencrypt(provider, token))
        return len(keys)
