"""Find the lines that open and close code blocks, as far as a stretch of text shows them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Indentation and list markers may stand before the run that opens a block.
_LINE = re.compile(
    r"^(?P<margin>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<run>`{3,}|~{3,})(?P<info>[^\n]*)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block."""

    run: str  # "```", "~~~~"
    opener: str  # with its language, to open the block again: "```python"
    margin: str  # the spaces that the closing line needs to belong to the same list item

    @property
    def closer(self) -> str:
        return self.margin + self.run


@dataclass(frozen=True, slots=True)
class FenceLine:
    """A line that begins with a run of fence characters."""

    start: int
    run_start: int
    run_end: int
    end: int  # of the line, without its line break
    margin: str
    info: str

    @property
    def indentation(self) -> int:
        return len(self.margin) - len(self.margin.lstrip())

    def opens(self, text: str) -> Fence | None:
        """The block that it opens, when it is met outside of one."""
        run = text[self.run_start : self.run_end]
        if run[0] == "`" and "`" in self.info:
            return None  # `CommonMark`: that is inline code
        return Fence(run, run + self.info.rstrip(), " " * len(self.margin))

    def closes(self, fence: Fence, text: str) -> bool:
        """Whether the block that is open ends here."""
        run = text[self.run_start : self.run_end]
        rest = self.margin + self.info
        return run.startswith(fence.run) and (not rest or rest.isspace())


def fence_lines(text: str, start: int, end: int) -> Iterator[FenceLine]:
    """The lines in `text[start:end]` that may open or close a block, whatever is around them."""
    for match in _LINE.finditer(text, start, end):
        yield FenceLine(
            match.start(), *match.span("run"), match.end(), match["margin"], match["info"]
        )
