"""The keys of TROUPE_ENCRYPTION_KEYS, which encrypt other keys: the first one, each decrypts."""

from collections.abc import Sequence

from cryptography.fernet import Fernet, MultiFernet

from bot.errors import SettingsError


def make_fernets(encryption_keys: Sequence[str], *, needed_by: str) -> MultiFernet:
    """Return what encrypts with the first of the keys.

    Args:
        encryption_keys: as `troupe keys new` prints them, the newest first.
        needed_by: what cannot do without them, for the error.

    Raises:
        SettingsError: there is none, or one is not of that form.
    """
    if not encryption_keys:
        raise SettingsError(
            f"{needed_by} a key to encrypt them; set TROUPE_ENCRYPTION_KEYS to"
            " what `troupe keys new` prints, and keep a copy of it outside of the database"
        )
    try:
        return MultiFernet([Fernet(key) for key in encryption_keys])
    except ValueError:
        raise SettingsError(
            "TROUPE_ENCRYPTION_KEYS has something else than keys as `troupe keys new` prints"
            " them, separated by commas"
        ) from None
