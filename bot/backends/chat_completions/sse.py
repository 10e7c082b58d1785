"""Cut a stream of bytes into server-sent events, however the network cut it before."""

MAX_EVENT_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """One event goes on for ever; nobody sends such a one in good faith."""


class EventStream:
    """Feed it bytes, get the data of the events that they completed.

    Follows the HTML standard (9.2.6): lines end with CR, LF or CRLF, a colon opens a comment,
    several data lines are one event. Names and ids of events are dropped: chat APIs use none.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line: list[bytes] = []  # what came of a line without its end
        self._data: list[bytes] = []  # the data lines of an event without its end
        self._held_bytes = 0
        self._after_carriage_return = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes.

        Raises:
            EventTooLong: more than `max_event_bytes` came without completing an event.
        """
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
            whole = b"".join((*self._line, line.rstrip(b"\r\n")))
            self._held_bytes -= sum(map(len, self._line))
            self._line.clear()
            self._take_line(whole, events)
        self._after_carriage_return = chunk.endswith(b"\r")
        return events

    def end(self) -> list[bytes]:
        """Say that nothing follows; many servers leave out the last empty line."""
        return self.feed(b"\n\n")

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b"data:"):
            self._hold(self._data, line[5:].removeprefix(b" "))
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._held_bytes -= sum(map(len, self._data))
            self._data.clear()

    def _hold(self, where: list[bytes], piece: bytes) -> None:
        if not piece and where is self._line:
            return
        where.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > self._max_event_bytes:
            raise EventTooLong(f"an event of more than {self._max_event_bytes} bytes")
