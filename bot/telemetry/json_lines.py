"""Print everything a process writes to stdout and stderr as JSON lines, if logs are JSON."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

_PROGRAM_PREFIX = "troupe: "


class JsonLines(io.TextIOBase):
    """Wraps stdout or stderr; prints each line as a JSON object if `wants_json` returns true.

    `wants_json` is called only at the first line, because it reads the settings, which is slower
    than most commands. Logs are already JSON, so their handler writes to `stream` directly.
    """

    def __init__(self, stream: TextIO, wants_json: Callable[[], bool], level: str = "info") -> None:
        self.stream = stream
        self.level = level
        self._wants_json = wants_json
        self._writes_json: bool | None = None
        self._partial_line = ""

    @override
    def write(self, text: str) -> int:
        if self._writes_json is None:
            self._writes_json = self._wants_json()
        if not self._writes_json:
            return self.stream.write(text)
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self._write_line(line)
        return len(text)

    @override
    def flush(self) -> None:
        self.stream.flush()

    @override
    def close(self) -> None:
        """Print the unfinished last line, if any; the wrapped stream stays open."""
        self._write_line(self._partial_line)
        self._partial_line = ""
        self.flush()

    @override
    def isatty(self) -> bool:
        return self.stream.isatty()

    @override
    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    @override
    def encoding(self) -> str:  # type: ignore[override] # read-only
        return self.stream.encoding

    def _write_line(self, line: str) -> None:
        if not line.strip():
            return
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        event = {"event": line.removeprefix(_PROGRAM_PREFIX), "level": self.level, "timestamp": at}
        self.stream.write(json.dumps(event, ensure_ascii=False) + "\n")
