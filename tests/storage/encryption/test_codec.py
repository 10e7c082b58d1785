"""What the codec stores, and what it refuses."""

import pytest

from bot.errors import StoreError, UnknownDataKey
from bot.storage.encryption.cipher import AesGcmCipher
from bot.storage.encryption.codec import TextCodec

FIRST, SECOND = AesGcmCipher(bytes(32)), AesGcmCipher(bytes([1]) * 32)
TEXTS = [
    "Hello",
    "Zo\u00eb \U0001f600\r\n",
    "\x02troupe:",
    "\x02troupe:0:",
    "\x02troupe:1:AAAA",
    " ",
]


def codec(*, is_on: bool, newest: int = 1) -> TextCodec:
    made = TextCodec()
    made.use({1: FIRST, 2: SECOND} if newest == 2 else {1: FIRST}, is_on=is_on)
    return made


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_on", [True, False])
def test_what_is_decoded_is_what_was_encoded(text: str, *, is_on: bool) -> None:
    one = codec(is_on=is_on)
    assert one.decode_text("turn.text", one.encode_text("turn.text", text)) == text
    stored = one.encode_bytes("inbox.payload", text.encode())
    assert one.decode_bytes("inbox.payload", stored) == text.encode()


@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_stays_nothing(nothing: str | None) -> None:
    one = codec(is_on=True)
    assert one.encode_text("turn.text", nothing) == nothing
    assert one.encode_bytes("inbox.payload", b"") == b""


def test_unencrypted_text_is_stored_as_it_is_and_read_in_any_case() -> None:
    assert TextCodec().encode_text("turn.text", "Hello") == "Hello"
    assert codec(is_on=True).decode_text("turn.text", "Hello") == "Hello"


def test_equal_texts_are_stored_differently() -> None:
    one = codec(is_on=True)
    stored = {one.encode_text("turn.text", "Hello") for _ in range(20)}
    assert len(stored) == 20
    assert not any("Hello" in (text or "") for text in stored)


def test_encrypted_text_is_read_after_encryption_was_turned_off() -> None:
    stored = codec(is_on=True).encode_text("turn.text", "Hello")
    assert codec(is_on=False).decode_text("turn.text", stored) == "Hello"


def test_text_that_was_moved_to_another_column_is_refused() -> None:
    one = codec(is_on=True)
    stored = one.encode_text("turn.text", "Hello")
    with pytest.raises(StoreError, match=r"summary\.text.*damaged, or was moved"):
        one.decode_text("summary.text", stored)


@pytest.mark.parametrize("rest", ["1:AAAA", "1:", "1:%%%", "x:AAAA", "", "1"])
def test_damaged_text_is_refused(rest: str) -> None:
    one = codec(is_on=True)
    with pytest.raises(StoreError, match="damaged"):
        one.decode_text("turn.text", f"\x02troupe:{rest}")
    with pytest.raises(StoreError, match="damaged"):
        one.decode_bytes("turn.text", f"\x02troupe:{rest}".encode())


def test_text_without_its_key_is_refused_and_not_shown() -> None:
    stored = codec(is_on=True, newest=2).encode_text("turn.text", "Hello")
    with pytest.raises(UnknownDataKey, match="TROUPE_ENCRYPTION_KEYS"):
        codec(is_on=True).decode_text("turn.text", stored)
    with pytest.raises(UnknownDataKey):
        TextCodec().decode_text("turn.text", stored)


def test_renewed_value_is_stored_like_new_ones() -> None:
    on, off, newer = codec(is_on=True), codec(is_on=False), codec(is_on=True, newest=2)
    encrypted = on.renewed("turn.text", "Hello")
    assert encrypted != "Hello"
    assert on.renewed("turn.text", encrypted) == encrypted
    assert off.renewed("turn.text", encrypted) == "Hello"
    again = newer.renewed("turn.text", encrypted)
    assert isinstance(again, str)
    assert again.startswith("\x02troupe:2:")
    assert newer.decode_text("turn.text", again) == "Hello"
    assert off.renewed("inbox.payload", on.renewed("inbox.payload", b"{}")) == b"{}"
