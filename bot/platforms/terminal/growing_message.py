"""Print a message that still grows: what cannot change any more is printed once, for good.

A block of Markdown is final as soon as another one follows it; a line of a code block as soon as it
is complete. What is left is shown below what was printed, and replaced with each update.
"""

import re
from dataclasses import dataclass, field

from markdown_it.token import Token

from bot.platforms.terminal.text_renderer import TextRenderer, parse_markdown

_SPACE = re.compile(r"\s+")
_SPEAKER_LINE = re.compile(r"\[([^\n]+)\](?:\n|\Z)")


@dataclass(slots=True)
class _OpenCodeBlock:
    run: str
    language: str
    margin: int
    lines: list[str] = field(default_factory=list)

    def is_closed_by(self, line: str) -> bool:
        bare = line.strip()
        return len(bare) >= len(self.run) and set(bare) == {self.run[0]}

    def add(self, line: str) -> None:
        spaces = len(line) - len(line.lstrip(" "))
        self.lines.append(line[min(self.margin, spaces) :].expandtabs(4))


class GrowingMessage:
    """One message of the bot; its first line may name the speaker: "[Nora]"."""

    def __init__(self, renderer: TextRenderer) -> None:
        self.text = ""
        self._renderer = renderer
        self._printed = 0  # so many characters of the text
        self._examined = 0  # so far the text was searched for what is final
        self._blocks = 0  # so many blocks were printed
        self._code: _OpenCodeBlock | None = None

    def update(self, text: str) -> bool:
        """Take the whole text as it is now; return False if what was printed is different."""
        if text[: self._printed] != self.text[: self._printed]:
            return False
        self.text = text
        return True

    def take_final(self) -> list[str]:
        """Return what can be printed for good, each part on lines of its own."""
        end = self.text.rfind("\n") + 1
        if end == self._examined:
            return []
        self._examined = end
        return self._take(end, whole=False)

    def take_rest(self) -> list[str]:
        """Return all that was not printed yet: the message is complete."""
        return self._take(len(self.text), whole=True)

    def growing(self, max_chars: int = 3000) -> list[str]:
        """Return the lines of what may still change; of a long text only its end is rendered."""
        copy = GrowingMessage(self._renderer)
        copy.text, copy._printed, copy._blocks = self.text, self._printed, self._blocks
        if len(self.text) - self._printed > max_chars:
            copy._printed = self._start_of_word(len(self.text) - max_chars)
        if self._code is not None:
            code = self._code
            copy._code = _OpenCodeBlock(code.run, code.language, code.margin, list(code.lines))
        return [line for part in copy.take_rest() for line in part.split("\n")]

    def _start_of_word(self, position: int) -> int:
        space = _SPACE.search(self.text, position)
        return space.end() if space else position

    def _take(self, end: int, *, whole: bool) -> list[str]:
        parts: list[str] = []
        if self._printed == 0 and end and (speaker := _SPEAKER_LINE.match(self.text)):
            parts.append(self._renderer.label(speaker[1]))
            self._printed = speaker.end()
        before = -1
        while before < self._printed < end:
            before = self._printed
            source = self.text[before:end]
            if self._code is not None:
                self._take_code(self._code, source, parts)
            else:
                self._take_blocks(source, parts, whole=whole)
        if whole and self._code is not None:
            self._close_code(self._code, parts)
        return parts

    def _take_blocks(self, source: str, parts: list[str], *, whole: bool) -> None:
        """Print blocks up to the first code block, or up to the last block, which may grow."""
        lines = source.splitlines(keepends=True)
        blocks = [one for one in parse_markdown(source) if one.level == 0 and one.map]
        taken = 0
        for number, block in enumerate(blocks):
            begin, after = block.map or (0, 0)
            if block.type == "fence":
                self._open_code(block, lines[begin], parts)
                taken = begin + 1
                break
            if number == len(blocks) - 1 and not whole:
                break
            self._print_block("".join(lines[begin:after]), parts)
            taken = after
        else:
            taken = len(lines)  # only blank lines are left
        self._printed += sum(map(len, lines[:taken]))

    def _print_block(self, source: str, parts: list[str]) -> None:
        rendered = self._renderer.markdown(source)
        if rendered:
            self._separate(parts)
            parts.append(rendered)

    def _separate(self, parts: list[str]) -> None:
        if self._blocks:
            parts.append("")
        self._blocks += 1

    def _open_code(self, block: Token, line: str, parts: list[str]) -> None:
        margin = len(line) - len(line.lstrip(" "))
        self._code = _OpenCodeBlock(block.markup, block.info.partition(" ")[0], margin)
        self._separate(parts)
        parts.append(self._renderer.plain(f"{block.markup}{self._code.language}", "dim"))

    def _take_code(self, code: _OpenCodeBlock, source: str, parts: list[str]) -> None:
        added, closed = 0, False
        for line in source.splitlines(keepends=True):
            self._printed += len(line)
            closed = code.is_closed_by(line)
            if closed:
                break
            code.add(line.rstrip("\n"))
            added += 1
        if added:
            parts.append(self._renderer.code(code.lines, code.language, added))
        if closed:
            self._close_code(code, parts)

    def _close_code(self, code: _OpenCodeBlock, parts: list[str]) -> None:
        parts.append(self._renderer.plain(code.run, "dim"))
        self._code = None
