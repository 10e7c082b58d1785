"""Find the lines that open and close code blocks in a span of text."""

import re
from collections.abc import Iterator

from bot.frozen_dataclass import frozen_dataclass

# Indentation, quote marks and list markers may stand before the run that opens a block.
_LINE = re.compile(
    r"^(?P<margin>[ \t]*(?:(?:>|(?:[-*+]|\d{1,9}[.)])[ \t])[ \t]*)*)(?P<run>`{3,}|~{3,})"
    r"(?P<info>[^\n]*)",
    re.MULTILINE,
)
_LIST_MARKER = re.compile(r"[^\t>]")


@frozen_dataclass
class Fence:
    """An open code block."""

    run: str
    """"```" or "~~~~"."""
    opener: str
    """The run with its language, to reopen the block: "```python"."""
    margin: str
    """What keeps a line in the same quote and list item."""

    @property
    def closer(self) -> str:
        return self.margin + self.run


@frozen_dataclass
class FenceLine:
    """A line that begins with a run of fence characters."""

    start: int
    run_start: int
    run_end: int
    end: int
    """The end of the line, without its line break."""
    margin: str
    info: str

    @property
    def indentation(self) -> int:
        return len(self.margin) - len(self.margin.lstrip())

    def opens(self, text: str) -> Fence | None:
        """Return the block that this line opens outside of one, or None."""
        run = text[self.run_start : self.run_end]
        if run[0] == "`" and "`" in self.info:
            return None  # inline code, says CommonMark
        return Fence(run, run + self.info.rstrip(), _LIST_MARKER.sub(" ", self.margin))

    def closes(self, fence: Fence, text: str) -> bool:
        """Return whether this line closes an open block."""
        run = text[self.run_start : self.run_end]
        depth = self.margin.count(">")
        rest = self.margin.replace(">", "") + self.info
        is_bare = not rest or rest.isspace()
        return run.startswith(fence.run) and is_bare and depth == fence.margin.count(">")


def fence_lines(text: str, start: int, end: int) -> Iterator[FenceLine]:
    """Yield the lines of `text[start:end]` that may open or close a block."""
    for match in _LINE.finditer(text, start, end):
        yield FenceLine(
            match.start(), *match.span("run"), match.end(), match["margin"], match["info"]
        )
