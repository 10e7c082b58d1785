"""Print all of a process's output as JSON lines if TROUPE_LOG_FORMAT is json."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

_PROGRAM = "troupe: "


class JsonLines(io.TextIOBase):
    """Wraps stdout or stderr to print JSON lines if `is_wanted`; logs go to `stream`.

    `is_wanted` is called at the first line, as reading settings is slower than most commands.
    """

    def __init__(self, stream: TextIO, is_wanted: Callable[[], bool], level: str = "info") -> None:
        self.stream = stream
        self.level = level
        self._find_out = is_wanted
        self._is_wanted: bool | None = None
        self._line = ""

    @override
    def write(self, text: str) -> int:
        if self._is_wanted is None:
            self._is_wanted = self._find_out()
        if not self._is_wanted:
            return self.stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._write_line(line)
        return len(text)

    @override
    def flush(self) -> None:
        self.stream.flush()

    @override
    def close(self) -> None:
        """Print any unfinished line; the stream stays open."""
        self._write_line(self._line)
        self._line = ""
        self.flush()

    @override
    def isatty(self) -> bool:
        return self.stream.isatty()

    @override
    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    @override
    def encoding(self) -> str:  # type: ignore[override] # which a stream does not set
        return self.stream.encoding

    def _write_line(self, line: str) -> None:
        if not line.strip():
            return
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        event = {"event": line.removeprefix(_PROGRAM), "level": self.level, "timestamp": at}
        self.stream.write(json.dumps(event, ensure_ascii=False) + "\n")
