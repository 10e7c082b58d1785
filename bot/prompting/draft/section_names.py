"""The names of a prompt's sections, for people."""

from bot.texts.stored import looked_up
from bot.texts.text import Text, translatable

_SECTION_NAMES = {
    "system": translatable("system"),
    "persona": translatable("persona"),
    "lore": translatable("lore"),
    "stories": translatable("stories"),
    "pinned": translatable("pinned"),
    "summary": translatable("summary"),
    "history": translatable("history"),
    "people": translatable("people"),
    "thread": translatable("thread"),
    "observed": translatable("background"),
    "quote": translatable("quote"),
    "file": translatable("file"),
    "post_history": translatable("post_history"),
    "newest": translatable("newest"),
}


def section_name(section: str) -> Text:
    """Return the name of a section; one that is not known is shown as it is."""
    return _SECTION_NAMES.get(section) or looked_up(section)
