"""Test the stored form of texts, and the rejection of damaged texts."""

from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from bot.errors import StoreError, Undecodable, UnknownEncryptionKey
from bot.storage.codec import TextCodec, TextEncryption
from bot.storage.fernets import FernetCodec

FIRST, SECOND = (Fernet.generate_key().decode() for _ in range(2))
TEXTS = [
    "Hello",
    "Zo\u00eb \U0001f600\r\n",
    "\x02troupe:",
    "\x02troupe:\x02troupe:",
    "\x02troupe:0123abcd:AAAA",
    " ",
]


def codec(*keys: str, is_on: bool = True, file: Path | None = None) -> TextCodec:
    return FernetCodec(TextEncryption(keys or (FIRST,), is_on, file))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_on", [True, False])
def test_decoding_reverses_encoding(text: str, *, is_on: bool) -> None:
    one = codec(is_on=is_on)
    assert one.decode(one.encode(text)) == text
    assert one.decode(one.encode(text.encode())) == text.encode()


@pytest.mark.parametrize("nothing", [None, ""])
def test_empty_values_are_not_encoded(nothing: str | None) -> None:
    one = codec()
    assert one.encode(nothing) == nothing
    assert one.encode(b"") == b""


def test_equal_texts_have_different_ciphertexts() -> None:
    one = codec()
    stored = {one.encode("Hello") for _ in range(20)}
    assert len(stored) == 20
    assert not any("Hello" in (text or "") for text in stored)


@pytest.mark.parametrize("rest", ["AAAA", "", ":", "x:AAAA", "%%%", "\xff:gAAAA"])
def test_damaged_text_is_refused(rest: str) -> None:
    with pytest.raises(Undecodable, match="damaged"):
        codec().decode(f"\x02troupe:{rest}")
    with pytest.raises(Undecodable, match="damaged"):
        codec().decode(f"\x02troupe:{rest}".encode())


def test_modified_ciphertext_is_refused() -> None:
    stored = codec().encode("Hello") or ""
    for at in (20, len(stored) // 2, len(stored) - 6):
        changed = stored[:at] + ("A" if stored[at] != "A" else "B") + stored[at + 1 :]
        with pytest.raises(StoreError, match="damaged"):
            codec().decode(changed)


def test_unknown_key_is_looked_up_in_the_changed_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(FIRST, encoding="utf-8")
    one = codec(FIRST, file=file)
    stored = codec(SECOND, FIRST).encode("Hello")
    with pytest.raises(UnknownEncryptionKey):
        one.decode(stored)
    file.write_text(f"{SECOND}\n{FIRST}", encoding="utf-8")
    assert one.decode(stored) == "Hello"
    assert codec(SECOND).decode(one.encode("new")) == "new", "it encrypts with it"


def test_reencoded_bytes_are_stored_like_new_bytes() -> None:
    assert codec(is_on=False).reencode(codec().reencode(b"{}")) == b"{}"
