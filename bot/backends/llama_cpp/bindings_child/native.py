"""Call llama.cpp's C interface: a model's vocabulary, and a KV cache of several sequences.

Only this module and sampling.py call it. A failure in native code ends its process, so this runs in
a child process.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as native
from typing_extensions import override

from bot.backends.llama_cpp.bindings_child.slots import BatchToken, KvCache
from bot.backends.llama_cpp.hardware import count_gpu_layers

_BATCH_TOKENS = 256
_ABORTED = 2  # the result of llama_decode
_TOKEN_BUFFER_BYTES = 256  # enough for most vocabularies
_LOGGED_LEVELS = (3, 4)  # llama.cpp's warnings and errors


def _log(level: int, text: bytes, _: object) -> None:
    if level in _LOGGED_LEVELS:
        os.write(2, text)


_LOG = native.llama_log_callback(_log)  # a reference, as C keeps calling it


class NativeError(Exception):
    """llama.cpp failed in a way that only a new process repairs."""


class Vocabulary:
    """The vocabulary of a model; may be used from any thread."""

    def __init__(self, handle: object) -> None:
        self.handle = handle
        self.size = int(native.llama_vocab_n_tokens(handle))
        self.ends = frozenset(  # any of them ends a turn
            token for token in range(self.size) if native.llama_vocab_is_eog(handle, token)
        )

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Tokenize a text.

        Args:
            text: what to tokenize.
            parse_special: turn the text of control tokens into control tokens.
            add_special: add the tokens that the model expects around a prompt.
        """
        data = text.encode()
        capacity = len(data) + 2  # at most a token a byte, and one at each end
        found = (native.llama_token * capacity)()
        count = native.llama_tokenize(
            self.handle, data, len(data), found, capacity, add_special, parse_special
        )
        if count < 0:
            raise NativeError(f"{-count} tokens in {len(data)} bytes")
        return list(found[:count])

    def token_bytes(self, token: int, *, render_special: bool = False) -> bytes:
        """Return the bytes of a token; a control token has none unless `render_special`."""
        size = _TOKEN_BUFFER_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = native.llama_token_to_piece(self.handle, token, buffer, size, 0, render_special)
            if count >= 0:
                return bytes(buffer.raw[:count])
            size = -count

    def control_token(self, word: str) -> int | None:
        """Return the control token with this text, if there is one."""
        found = self.tokenize(word, parse_special=True)
        is_control = len(found) == 1 and native.llama_vocab_is_control(self.handle, found[0])
        return found[0] if is_control else None


class NativeKvCache(KvCache):
    """One context of llama.cpp with several sequences, each of its own size."""

    def __init__(self, context: object) -> None:
        self.context = context
        self._memory = native.llama_get_memory(context)
        self._batch = native.llama_batch_init(_BATCH_TOKENS, 0, 1)
        model = native.llama_get_model(context)
        self._is_interrupted: Callable[[], bool] = lambda: False
        # Called after every node of the graph, which costs nothing measurable.
        self._abort_callback = native.ggml_abort_callback(lambda _: self._is_interrupted())
        # A recurrent model has a single state, which an interrupted batch would leave inconsistent.
        if not (native.llama_model_is_recurrent(model) or native.llama_model_is_hybrid(model)):
            native.llama_set_abort_callback(context, self._abort_callback, None)

    @property
    @override
    def slot_tokens(self) -> int:
        return int(native.llama_n_ctx_seq(self.context))

    @property
    @override
    def batch_tokens(self) -> int:
        return _BATCH_TOKENS

    @override
    def decode(self, tokens: Sequence[BatchToken], interrupted: Callable[[], bool]) -> bool:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token.token
            batch.pos[index] = token.position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = token.sequence
            batch.logits[index] = token.needs_logits
        self._is_interrupted = interrupted
        result = native.llama_decode(self.context, batch)
        if result == _ABORTED:
            begins = {token.sequence: token.position for token in reversed(tokens)}
            for sequence, begin in begins.items():
                native.llama_memory_seq_rm(self._memory, sequence, begin, -1)
            return False
        if result:
            raise NativeError(f"llama_decode gave {result}")
        return True

    @override
    def truncate(self, sequence: int, keep: int) -> int:
        if native.llama_memory_seq_rm(self._memory, sequence, keep, -1):
            return keep
        native.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return 0

    @override
    def copy(self, source: int, target: int) -> None:
        native.llama_memory_seq_rm(self._memory, target, -1, -1)
        native.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    @property
    @override
    def can_shift(self) -> bool:
        return bool(native.llama_memory_can_shift(self._memory))

    @override
    def shift(self, sequence: int, begin: int, to: int, length: int) -> None:
        native.llama_memory_seq_rm(self._memory, sequence, to, begin)
        native.llama_memory_seq_add(self._memory, sequence, begin, begin + length, to - begin)

    def save(self, sequence: int, path: Path, tokens: Sequence[int]) -> int:
        """Write a sequence to a file atomically; return its size in bytes.

        Raises:
            OSError: the disk is full, or there is no such folder.
        """
        part = path.with_name(f"{path.name}.part")
        array = (native.llama_token * len(tokens))(*tokens)
        size = native.llama_state_seq_save_file(
            self.context, os.fsencode(part), sequence, array, len(tokens)
        )
        if not size:
            part.unlink(missing_ok=True)
            raise OSError(f"{path.name} cannot be written")
        part.replace(path)
        return int(size)

    def restore(self, sequence: int, path: Path) -> list[int]:
        """Fill a sequence from a file; return its tokens.

        Raises:
            OSError: there is no such file, or it is another model's. The sequence is empty then.
        """
        native.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        capacity = self.slot_tokens
        tokens, count = (native.llama_token * capacity)(), ctypes.c_size_t()
        size = native.llama_state_seq_load_file(
            self.context, os.fsencode(path), sequence, tokens, capacity, ctypes.byref(count)
        )
        if not size:
            native.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            raise OSError(f"{path.name} cannot be read")
        return list(tokens[: count.value])


@contextmanager
def open_model(
    model: Path, *, slots: int, context_tokens: int, threads: int, gpu_layers: str
) -> Iterator[tuple[Vocabulary, NativeKvCache]]:
    """Load a model for the length of the block; raises `NativeError` when that fails."""
    native.llama_log_set(_LOG, None)
    native.llama_backend_init()
    model_params = native.llama_model_default_params()
    model_params.n_gpu_layers = count_gpu_layers(native.llama_supports_gpu_offload(), gpu_layers)
    loaded = native.llama_model_load_from_file(os.fsencode(model), model_params)
    if not loaded:
        raise NativeError(f"{model} cannot be loaded")
    try:
        params = native.llama_context_default_params()
        params.n_ctx = min(context_tokens, native.llama_model_n_ctx_train(loaded)) * slots
        params.n_seq_max = slots
        params.kv_unified = False  # each sequence has its own part, and is as fast as alone
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        context = native.llama_init_from_model(loaded, params)
        if not context:
            raise NativeError(f"not enough memory for {slots} slots of {context_tokens} tokens")
        try:
            yield Vocabulary(native.llama_model_get_vocab(loaded)), NativeKvCache(context)
        finally:
            native.llama_free(context)
    finally:
        native.llama_model_free(loaded)
