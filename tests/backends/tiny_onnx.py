"""Write an ONNX model that onnxruntime loads: a vector for each known word, to be averaged."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path

WORDS = [
    "[UNK]",
    "the",
    "a",
    "cat",
    "sleeps",
    "sleeping",
    "is",
    "on",
    "mat",
    "thunder",
    "rolled",
    "while",
    "sailors",
    "ropes",
]
_WIDTH = 16
_FLOAT, _INT64 = 1, 7  # ONNX's numbers for them


def write(folder: Path) -> Path:
    """Write a folder as sentence-transformers exports it; gives its path."""
    (folder / "1_Pooling").mkdir(parents=True)
    pooling = {"word_embedding_dimension": _WIDTH, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(WORDS)},
            "unk_token": WORDS[0],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model.onnx").write_bytes(_model())
    return folder


def _model() -> bytes:
    graph = b"".join(
        [
            _field(
                1, _text(1, "words"), _text(1, "input_ids"), _text(2, "out"), _text(4, "Gather")
            ),
            _text(2, "tiny"),
            _field(5, _table()),
            _field(11, _value("input_ids", _INT64, [1, 0])),
            _field(12, _value("out", _FLOAT, [1, 0, _WIDTH])),
        ]
    )
    return _number(1, 8) + _field(7, graph) + _field(8, _number(2, 13))


def _table() -> bytes:
    """Each word has a direction of its own; the unknown ones have a little of all."""
    rows = [
        [0.1 + (column == number) * bool(number) for column in range(_WIDTH)]
        for number in range(len(WORDS))
    ]
    numbers = [one for row in rows for one in row]
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    dimensions = _number(1, len(WORDS)) + _number(1, _WIDTH)
    return dimensions + _number(2, _FLOAT) + _text(8, "words") + _field(9, raw)


def _value(name: str, kind: int, shape: Iterable[int]) -> bytes:
    """A shape's 0 is of any size."""
    dimensions = [_field(1, _number(1, size) if size else _text(2, "any")) for size in shape]
    tensor = _number(1, kind) + _field(2, *dimensions)
    return _text(1, name) + _field(2, _field(1, tensor))


# Protocol buffers: a key (the field's number and how its value is written), then the value.


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode())


def _field(field: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low = value & 0x7F
    return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + _varint(value >> 7)
