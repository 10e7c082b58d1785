"""Parse server-sent events from a stream of bytes that arrives in arbitrary chunks."""

from bot.errors import TroupeError

MAX_EVENT_BYTES = 1024 * 1024
_DATA, _EVENT_END = b"data: ", b"\n\n"
_FIELDS = (b":", b"event:", b"id:", b"retry:", b"data")
_MAX_STRAY_BYTES = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEventTooLong(TroupeError, ValueError):
    """One event exceeds the size limit; no provider sends such a one in good faith."""


class SseParser:
    """Take bytes and return the data of the events that they completed.

    Follows the HTML standard (9.2.6): lines end with CR, LF or CRLF, a colon opens a comment,
    several data lines are one event. Event names and ids are dropped: every chat API repeats the
    name, where it has one, inside the data.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line: list[bytes] = []  # of an incomplete line
        self._data: list[bytes] = []  # the data lines of an incomplete event
        self._held_bytes = 0
        self._after_carriage_return = False
        self._at_start = True
        self.stray_lines: list[bytes] = []
        """Lines that belong to no event, up to 64 KiB: what a server wrote that sends no events."""
        self._stray_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Parse the next bytes.

        Raises:
            SseEventTooLong: more than `max_event_bytes` came without completing an event.
        """
        is_between_events = not (self._line or self._data or self._after_carriage_return)
        if is_between_events and len(chunk) <= self._max_event_bytes:
            events, chunk = _split_plain_events(chunk)
            self._at_start = self._at_start and not events
            return events + self._parse_lines(chunk) if chunk else events
        return self._parse_lines(chunk)

    def _parse_lines(self, chunk: bytes) -> list[bytes]:
        if self._after_carriage_return and chunk:
            self._after_carriage_return = False
            chunk = chunk.removeprefix(b"\n")
        events: list[bytes] = []
        if b"\n" not in chunk and b"\r" not in chunk:
            self._hold(self._line, chunk)
            return events
        for line in chunk.splitlines(keepends=True):
            if not line.endswith((b"\n", b"\r")):
                self._hold(self._line, line)
                continue
            complete = b"".join((*self._line, line.rstrip(b"\r\n")))
            self._held_bytes -= sum(map(len, self._line))
            self._line.clear()
            self._parse_line(complete, events)
        self._after_carriage_return = chunk.endswith(b"\r")
        return events

    def flush(self) -> list[bytes]:
        """Return the last event at the end of the stream; many servers omit its empty line."""
        return self.feed(b"\n\n")

    def _parse_line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b"data:"):
            self._hold(self._data, line[5:].removeprefix(b" "))
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._held_bytes -= sum(map(len, self._data))
            self._data.clear()
        elif line and not line.startswith(_FIELDS) and self._stray_bytes < _MAX_STRAY_BYTES:
            self.stray_lines.append(line)
            self._stray_bytes += len(line)

    def _hold(self, buffer: list[bytes], piece: bytes) -> None:
        if not piece and buffer is self._line:
            return
        buffer.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > self._max_event_bytes:
            raise SseEventTooLong(f"an event of more than {self._max_event_bytes} bytes")


def _split_plain_events(chunk: bytes) -> tuple[list[bytes], bytes]:
    """Split the events of one data line each off the beginning, and return what follows them."""
    whole = chunk.rfind(_EVENT_END) + len(_EVENT_END)
    if b"\r" in chunk or whole < len(_EVENT_END) or not chunk.startswith(_DATA):
        return [], chunk
    events = chunk[len(_DATA) : whole - len(_EVENT_END)].split(_EVENT_END + _DATA)
    if chunk.count(b"\n", 0, whole) == len(events) * len(_EVENT_END):  # no other line is there
        return events, chunk[whole:]
    return _split_single_events(chunk)


def _split_single_events(chunk: bytes) -> tuple[list[bytes], bytes]:
    """Do the same, one event after the other, where other lines stand between them."""
    events: list[bytes] = []
    begin = 0
    while chunk.startswith(_DATA, begin):
        end = chunk.find(b"\n", begin)
        if end < 0 or not chunk.startswith(b"\n", end + 1):
            break
        events.append(chunk[begin + len(_DATA) : end])
        begin = end + len(_EVENT_END)
    return events, chunk[begin:]
