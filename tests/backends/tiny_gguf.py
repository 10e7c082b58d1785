"""Write GGUF files that llama.cpp can load: all-zero models with a family's vocabulary."""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NORMAL, CONTROL, ADDED, BYTE = 1, 3, 4, 6
_ALIGNMENT = 32
_WIDTH = 32  # of everything in the model


@dataclass(frozen=True)
class Vocabulary:
    """A family's control tokens plus single bytes (`gpt2`) or letters and bytes (`llama`)."""

    pre: str  # llama.cpp's name of the way to split text; empty: SentencePiece
    control: Sequence[str]
    added: Sequence[str] = ()  # markers that the family's files do not call control tokens
    begins: bool = False  # every prompt gets the first control token in front
    space: bool = False  # SentencePiece: text gets a space in front

    @property
    def tokens(self) -> list[tuple[str, int]]:
        special = [(text, CONTROL) for text in self.control] + [
            (text, ADDED) for text in self.added
        ]
        if self.pre:
            return [*special, *((letter, NORMAL) for letter in _byte_letters())]
        letters = [chr(code) for code in range(0x21, 0x7F)] + ["▁"]
        numbers = [(f"<0x{number:02X}>", BYTE) for number in range(256)]
        return [*special, *numbers, *((letter, NORMAL) for letter in letters)]


def write(path: Path, vocabulary: Vocabulary, **metadata: Any) -> Path:
    """Write the file with extra metadata; `__` in a key stands for a dot."""
    tokens = vocabulary.tokens
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": _WIDTH,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2" if vocabulary.pre else "llama",
        "tokenizer.ggml.tokens": [text for text, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": vocabulary.begins,
    }
    if vocabulary.pre:
        keys |= {"tokenizer.ggml.pre": vocabulary.pre, "tokenizer.ggml.merges": ["h i"]}
    else:
        keys["tokenizer.ggml.scores"] = [0.0] * len(tokens)
        keys["tokenizer.ggml.add_space_prefix"] = vocabulary.space
    keys |= {key.replace("__", "."): value for key, value in metadata.items()}
    return lay_out(path, keys, _tensors(len(tokens)), bytes)


def lay_out(
    path: Path,
    keys: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    weights: Callable[[int], bytes],
) -> Path:
    """Write a GGUF file with the given keys and tensor shapes; `weights(n)` returns n bytes."""
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    header += b"".join(_text(key) + _value(value) for key, value in keys.items())
    offset, described, data = 0, b"", bytearray()
    for name, shape in tensors.items():
        described += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        offset += _padded(4 * math.prod(shape))
        data += weights(4 * math.prod(shape)).ljust(offset - len(data), b"\0")
    head = header + described
    path.write_bytes(head.ljust(_padded(len(head)), b"\0") + data)
    return path


def _tensors(vocabulary_size: int) -> Mapping[str, tuple[int, ...]]:
    square = (_WIDTH, _WIDTH)
    projections = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {
        "token_embd.weight": (_WIDTH, vocabulary_size),
        "output_norm.weight": (_WIDTH,),
        "blk.0.attn_norm.weight": (_WIDTH,),
        "blk.0.ffn_norm.weight": (_WIDTH,),
        **{f"blk.0.{name}.weight": square for name in projections},
    }


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        case _:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _byte_letters() -> list[str]:
    """Return GPT-2's characters for the 256 bytes; printable bytes map to themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unused = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(unused)) for byte in range(256)]
