"""Describe what data this installation stores about people, given its settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from bot.backends.spec import ModelFileSettings
from bot.prompting.presets.preset import Preset
from bot.service.backends import list_used_models
from bot.settings import Settings
from bot.storage.column_types import list_encryptable_columns
from bot.storage.data_kinds import DATA_KINDS, DataKind, PolicySection
from bot.storage.retention import (
    FORGOTTEN_RETENTION_SECONDS,
    INBOX_RETENTION_SECONDS,
    OUTBOX_RETENTION_SECONDS,
    USAGE_RETENTION_SECONDS,
)
from bot.storage.tables import metadata


def describe_policy(settings: Settings, presets: Iterable[Preset]) -> Sequence[PolicySection]:
    """Return one section of the privacy policy per kind of stored data."""
    keys, providers = ("transcription_model", "moderation_model"), settings.providers.items()
    helper_names = [name for name, one in providers if any(getattr(one, key, None) for key in keys)]
    recipients = list_recipients(settings, list(presets), lambda _provider: helper_names)
    recipient_text = ", ".join(
        f"{name} (on the bot's machine)" if is_local else name
        for name, is_local in recipients.items()
    )
    retention_seconds = {
        "inbox": INBOX_RETENTION_SECONDS,
        "outbox": OUTBOX_RETENTION_SECONDS,
        "usage": USAGE_RETENTION_SECONDS,
        "forgotten": FORGOTTEN_RETENTION_SECONDS,
    }
    retention_days = {name: each / 86_400 for name, each in retention_seconds.items()}
    retention_days["receipts"] = settings.effective_receipt_days
    spans = {name: f"{each:g} days" for name, each in retention_days.items()}
    history = settings.history_days
    spans["history"] = "until /forget" if history is None else f"{history:g} days, or until /forget"
    database = "SQLite" if settings.sqlalchemy_url.startswith("sqlite") else "PostgreSQL"
    return [
        PolicySection(
            kind.name,
            {
                "Purpose": kind.purpose,
                "Place": kind.place or f"{database}, tables {', '.join(kind.tables)}",
                "Kept": kind.retention.format(**spans),
                "Sent to": (recipient_text if kind.is_sent else "") or "nobody",
                "Encrypted": _describe_encryption(kind, settings),
                "Read by": kind.readers,
            },
        )
        for kind in DATA_KINDS
    ]


def list_recipients(
    settings: Settings, presets: Sequence[Preset], find_helpers: Callable[[str], Iterable[str]]
) -> Mapping[str, bool]:
    """Return who receives people's messages, and whether each recipient is on the bot's machine.

    `find_helpers` returns a provider's helpers, which transcribe voice messages or check answers.
    """
    names = dict.fromkeys(name for preset in presets for name, _ in list_used_models(preset))
    names |= dict.fromkeys(helper for name in names for helper in find_helpers(name))
    is_local = {name: isinstance(settings.providers.get(name), ModelFileSettings) for name in names}
    is_local |= {name: False for preset in presets for name in preset.mcp_servers}
    uses_embeddings = any(one.character or one.memory for one in presets)
    if settings.embedding.base_url is not None and uses_embeddings:
        is_local[str(settings.embedding.base_url)] = False
    return is_local


def _describe_encryption(kind: DataKind, settings: Settings) -> str:
    has_texts = any(list_encryptable_columns(metadata.tables[name]) for name in kind.tables)
    if kind.encryption:
        return kind.encryption
    if has_texts or "Redis" in kind.place:
        return "yes, the texts" if settings.encrypt_texts else "no; TROUPE_ENCRYPT_TEXTS is off"
    return "no; contains no texts" if kind.tables else "no; use an encrypted disk"
