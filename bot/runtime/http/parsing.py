"""Parse a response of HTTP/1.1: its head, and its body as the bytes arrive."""

import re
from collections.abc import Mapping

from typing_extensions import override

from bot.runtime.http.failures import ConnectionFailed

_MAX_LINE_BYTES = 4096  # of the line before a chunk
_LINE_END = b"\r\n"
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_NO_BODY = frozenset({204, 304})


class ResponseBody:
    """A body that ends with its connection, and what the other kinds have in common."""

    ends_with_connection = True

    def __init__(self) -> None:
        self.is_complete = False
        self.surplus = False
        """More has arrived than the response consists of."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, none at the end of the connection; return those of the body."""
        self.is_complete = not data
        return data


class _SizedBody(ResponseBody):
    ends_with_connection = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size
        self.is_complete = size == 0

    @override
    def feed(self, data: bytes) -> bytes:
        body = data[: self._left]
        self.surplus = len(data) > len(body)
        self._left -= len(body)
        self.is_complete = self._left == 0
        return body


class _ChunkedBody(ResponseBody):
    ends_with_connection = False

    def __init__(self) -> None:
        super().__init__()
        self._left = 0  # of the chunk, and of the line end after it
        self._rest = b""  # an incomplete line
        self._in_trailer = False

    @override
    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data, self._rest = self._rest + data, b""
        parts: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_complete:
            if self._left:
                at = self._take_chunk(data, at, parts)
            else:
                at = self._take_line(data, self._take_whole_chunks(data, at, parts))
        self.surplus = at < len(data)
        return b"".join(parts)

    def _take_whole_chunks(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Take plain chunks that are there as a whole; return where something else begins.

        A stream of tokens has one for each token, and many arrive together.
        """
        while not self._in_trailer and (size := _CHUNK_SIZE.match(data, at)):
            begin = size.end()
            end = begin + int(size[1], 16)
            if end == begin or not data.startswith(_LINE_END, end):
                break
            parts.append(data[begin:end])
            at = end + len(_LINE_END)
        return at

    def _take_chunk(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Take what is there of a chunk and of its line end; return where it ends."""
        end = at + self._left
        if self._left > len(_LINE_END):
            parts.append(data[at : min(end - len(_LINE_END), len(data))])
            if end <= len(data) and data[end - len(_LINE_END) : end] != _LINE_END:
                raise ConnectionFailed("the server's response has a chunk of another size")
        self._left = max(0, end - len(data))
        return min(end, len(data))

    def _take_line(self, data: bytes, at: int) -> int:
        """Take the size of the next chunk, or a line after the last one; return where it ends."""
        end = data.find(_LINE_END, at)
        if end < 0:
            self._rest = data[at:]
            if len(self._rest) > _MAX_LINE_BYTES:
                raise ConnectionFailed("the server's response has a chunk without a size")
            return len(data)
        line = data[at:end]
        if self._in_trailer:
            self.is_complete = not line
        else:
            size = _chunk_size(line)
            self._in_trailer = size == 0
            self._left = size + len(_LINE_END) if size else 0
        return end + len(_LINE_END)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if digits.isalnum():
            return int(digits, 16)
    except ValueError:
        pass
    raise ConnectionFailed("the server's response has a chunk without a size")


def body_of(status: int, headers: Mapping[str, str]) -> ResponseBody:
    if status in _NO_BODY:
        return _SizedBody(0)
    if "transfer-encoding" in headers:
        is_chunked = headers["transfer-encoding"].lower().endswith("chunked")
        return _ChunkedBody() if is_chunked else ResponseBody()
    size = headers.get("content-length")
    if size is None:
        return ResponseBody()
    if not (size.isascii() and size.isdigit()):
        raise ConnectionFailed("the server's response has an invalid length")
    return _SizedBody(int(size))


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, by their names in lower case.

    Raises:
        ConnectionFailed: it is malformed.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version not in {"HTTP/1.1", "HTTP/1.0"} or not (status.isascii() and status.isdigit()):
        raise ConnectionFailed("the server does not speak HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or not name or name != name.strip():
            raise ConnectionFailed("the server's response has a malformed header")
        if name == "content-length" and headers.get(name, value) != value:
            raise ConnectionFailed("the server's response has two lengths")
        headers[name] = value
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(status), headers
