"""The edition of a preset that somebody works on."""

from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class ImportedFile:
    """The file that a preset was imported from."""

    name: str
    content: bytes


@frozen_dataclass
class PresetDraft:
    """A text that is to become a version of a preset."""

    name: str
    """Of the preset."""
    base_version: int
    """The version that it was begun from; 0: the preset is new."""
    revision: int
    """Counts what was saved; the first is 1."""
    content: str
    """As it was written, valid or not."""
    updated_at: float
    """In Unix seconds."""
    source: ImportedFile | None = None
