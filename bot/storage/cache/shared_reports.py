"""What each process of an installation tells of itself, shared over the signals' server."""

from collections.abc import Mapping, Sequence

import msgspec

from bot.chat.console.operation import ProcessReport
from bot.errors import StoreError
from bot.ports import SharedValues
from bot.storage.encryption.codec import TextCodec

_MAX_BYTES = 2**20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ProcessReport).decode


class SharedReports:
    """Reports by the name that a process holds leases under; any of them may be lost."""

    def __init__(self, values: SharedValues, codec: TextCodec) -> None:
        """Take where they are kept, and what encodes the texts of the database."""
        self._values = values
        self._codec = codec

    def keep(self, owner: str, report: ProcessReport) -> None:
        """Share what a process tells; what it told before is replaced."""
        value = self._codec.encode_bytes(_encode(report))
        if value is not None and len(value) <= _MAX_BYTES:
            self._values.keep(_key(owner), value)

    async def find(self, owners: Sequence[str]) -> Mapping[str, ProcessReport]:
        """Return what these processes told last, as far as that is known."""
        found: dict[str, ProcessReport] = {}
        for owner in owners:
            report = await self._find(owner)
            if report is not None:
                found[owner] = report
        return found

    async def _find(self, owner: str) -> ProcessReport | None:
        value = await self._values.find(_key(owner))
        if value is None:
            return None
        try:
            packed = self._codec.decode_bytes(value)
            return None if packed is None else _decode(packed)
        except (msgspec.DecodeError, StoreError):  # of another version of Troupe, or another key
            return None


def _key(owner: str) -> str:
    return f"report:{owner}"
