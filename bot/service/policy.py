"""Describe what data this installation stores about people, given its settings."""

from collections.abc import Iterable, Sequence

from bot.backends.spec import ModelFileSettings
from bot.prompting.presets.preset import Preset
from bot.service.backends import used_models
from bot.settings import Settings
from bot.storage.column_types import encryptable_columns
from bot.storage.data_kinds import KINDS, DataKind, PolicySection
from bot.storage.retention import FORGOTTEN_SECONDS, INBOX_SECONDS, OUTBOX_SECONDS, USAGE_SECONDS
from bot.storage.tables import metadata


def describe_policy(settings: Settings, presets: Iterable[Preset]) -> Sequence[PolicySection]:
    """Return one section of the privacy policy per kind of stored data."""
    recipients = ", ".join(_recipients(settings, list(presets))) or "nobody"
    seconds = {"inbox": INBOX_SECONDS, "outbox": OUTBOX_SECONDS, "usage": USAGE_SECONDS}
    days = {name: each / 86_400 for name, each in seconds.items()}
    days |= {"forgotten": FORGOTTEN_SECONDS / 86_400, "receipts": settings.kept_receipt_days}
    times = {name: f"{each:g} days" for name, each in days.items()}
    history = settings.history_days
    times["history"] = "until /forget" if history is None else f"{history:g} days, or until /forget"
    database = "SQLite" if settings.sqlalchemy_url.startswith("sqlite") else "PostgreSQL"
    return [
        PolicySection(
            kind.name,
            {
                "Purpose": kind.purpose,
                "Place": kind.place or f"{database}, tables {', '.join(kind.tables)}",
                "Kept": kind.kept.format(**times),
                "Sent to": recipients if kind.is_sent else "nobody",
                "Encrypted": _encryption(kind, settings),
                "Read by": kind.readers,
            },
        )
        for kind in KINDS
    ]


def _recipients(settings: Settings, presets: Sequence[Preset]) -> list[str]:
    """Return the providers and tool servers that receive people's messages."""
    providers = settings.providers
    names = [name for preset in presets for name, _ in used_models(preset)]
    for model in ("transcription_model", "moderation_model"):
        names += [name for name, one in providers.items() if getattr(one, model, None)]
    local = {name for name, one in providers.items() if isinstance(one, ModelFileSettings)}
    found = [f"{name} (on the bot's machine)" if name in local else name for name in names]
    found += [name for preset in presets for name in preset.mcp_servers]
    if settings.embedding.base_url is not None and any(one.character for one in presets):
        found.append(str(settings.embedding.base_url))
    return [*dict.fromkeys(found)]


def _encryption(kind: DataKind, settings: Settings) -> str:
    has_texts = any(encryptable_columns(metadata.tables[name]) for name in kind.tables)
    if kind.encrypted:
        return kind.encrypted
    if has_texts or "Redis" in kind.place:
        return "yes, the texts" if settings.encrypt_texts else "no; TROUPE_ENCRYPT_TEXTS is off"
    return "no; contains no texts" if kind.tables else "no; use an encrypted disk"
