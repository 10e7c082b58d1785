"""The kinds of stored data: where and how long they are kept, and which statements delete them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bot.value_class import value_class


@value_class
class DataKind:
    """Data stored for one purpose; an entry in data_kinds.toml."""

    name: str
    purpose: str
    retention: str
    tables: tuple[str, ...] = ()
    place: str = ""
    """Where the data is stored, if not in the database."""
    readers: str = "operators"
    encryption: str = ""
    """A note on what is encrypted; empty if that depends on the settings."""
    is_sent: bool = False
    """Whether the data is sent to model providers."""
    person_deletions: tuple[str, ...] = ()
    conversation_deletions: tuple[str, ...] = ()


@value_class
class PolicySection:
    """One kind of data as shown by `troupe policy`; `lines` maps headings to texts."""

    name: str
    lines: Mapping[str, str]


_FILE_CONTENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DATA_KINDS = msgspec.convert(_FILE_CONTENT["kind"], tuple[DataKind, ...])
KEPT_ID_REASONS = msgspec.convert(_FILE_CONTENT["kept_ids"], dict[str, str])
PERSON_DELETION_SQL_NAMES = tuple(name for kind in DATA_KINDS for name in kind.person_deletions)
CONVERSATION_DELETIONS = tuple(name for kind in DATA_KINDS for name in kind.conversation_deletions)
