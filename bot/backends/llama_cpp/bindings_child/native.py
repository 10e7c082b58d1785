"""llama.cpp itself: a model's words, and its memory of several conversations.

The only file that calls its C interface, besides the one with the samplers. Native code ends the
process that it fails in, which is why all of this has one of its own.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as native
from typing_extensions import override

from bot.backends.llama_cpp.bindings_child.slots import Memory, Row
from bot.backends.llama_cpp.hardware import count_gpu_layers

_BATCH_TOKENS = 256
_ABORTED = 2
_LONGEST_WORD = 256  # bytes, of most vocabularies
_LOGGED = (3, 4)  # llama.cpp's levels: warnings and errors; the others tell how it loads


def _log(level: int, text: bytes, _: object) -> None:
    if level in _LOGGED:
        os.write(2, text)


_LOG = native.llama_log_callback(_log)  # kept for ever: C calls it


class EngineFailed(Exception):
    """llama.cpp does not go on; only a new process helps."""


class Vocabulary:
    """A model's tokens. Any thread may ask."""

    def __init__(self, handle: object) -> None:
        self.handle = handle
        self.size = int(native.llama_vocab_n_tokens(handle))
        self.ends = frozenset(  # the model ends its turn with any of them
            token for token in range(self.size) if native.llama_vocab_is_eog(handle, token)
        )

    def tokens(self, text: str, *, special: bool, begun: bool = False) -> list[int]:
        """Read a text; control tokens only if `special`, the model's beginning only if `begun`."""
        data = text.encode()
        room = len(data) + 2  # a byte has one token at most, and a prompt a beginning and an end
        found = (native.llama_token * room)()
        count = native.llama_tokenize(self.handle, data, len(data), found, room, begun, special)
        if count < 0:
            raise EngineFailed(f"{-count} tokens in {len(data)} bytes")
        return list(found[:count])

    def spelled(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token stands for; a control token has some only if `special`."""
        size = _LONGEST_WORD
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = native.llama_token_to_piece(self.handle, token, buffer, size, 0, special)
            if count >= 0:
                return bytes(buffer.raw[:count])
            size = -count

    def control(self, word: str) -> int | None:
        """The control token that is written so."""
        found = self.tokens(word, special=True)
        is_control = len(found) == 1 and native.llama_vocab_is_control(self.handle, found[0])
        return found[0] if is_control else None


class NativeMemory(Memory):
    """One context of llama.cpp with several sequences, each with room of its own."""

    def __init__(self, context: object) -> None:
        self.context = context
        self._memory = native.llama_get_memory(context)
        self._batch = native.llama_batch_init(_BATCH_TOKENS, 0, 1)
        model = native.llama_get_model(context)
        self._interrupted: Callable[[], bool] = lambda: False
        # Asked after every step of the computation, which costs nothing that could be measured.
        self._asked = native.ggml_abort_callback(lambda _: self._interrupted())
        # Some models remember a single state, which an interrupted batch would leave torn.
        if not (native.llama_model_is_recurrent(model) or native.llama_model_is_hybrid(model)):
            native.llama_set_abort_callback(context, self._asked, None)

    @property
    @override
    def sequence_tokens(self) -> int:
        return int(native.llama_n_ctx_seq(self.context))

    @property
    @override
    def batch_tokens(self) -> int:
        return _BATCH_TOKENS

    @override
    def read(self, rows: Sequence[Row], interrupted: Callable[[], bool]) -> bool:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, row in enumerate(rows):
            batch.token[index] = row.token
            batch.pos[index] = row.position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = row.sequence
            batch.logits[index] = row.wanted
        self._interrupted = interrupted
        result = native.llama_decode(self.context, batch)
        if result == _ABORTED:
            begins = {row.sequence: row.position for row in reversed(rows)}
            for sequence, begin in begins.items():
                native.llama_memory_seq_rm(self._memory, sequence, begin, -1)
            return False
        if result:
            raise EngineFailed(f"llama_decode gave {result}")
        return True

    @override
    def cut(self, sequence: int, keep: int) -> int:
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
    def can_move(self) -> bool:
        return bool(native.llama_memory_can_shift(self._memory))

    @override
    def move(self, sequence: int, begin: int, to: int, length: int) -> None:
        native.llama_memory_seq_rm(self._memory, sequence, to, begin)
        native.llama_memory_seq_add(self._memory, sequence, begin, begin + length, to - begin)

    def save(self, sequence: int, path: Path, tokens: Sequence[int]) -> int:
        """Write what a sequence holds to a file, whole or not at all; gives its size in bytes.

        Raises:
            OSError: there is no room, or no such folder.
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
        """Make a sequence hold what was saved; gives its tokens.

        Raises:
            OSError: there is no such file, or it is another model's; the sequence is empty then.
        """
        native.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        room = self.sequence_tokens
        tokens, count = (native.llama_token * room)(), ctypes.c_size_t()
        size = native.llama_state_seq_load_file(
            self.context, os.fsencode(path), sequence, tokens, room, ctypes.byref(count)
        )
        if not size:
            native.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            raise OSError(f"{path.name} cannot be read")
        return list(tokens[: count.value])


@contextmanager
def opened(
    model: Path, *, slots: int, context_tokens: int, threads: int, gpu_layers: str
) -> Iterator[tuple[Vocabulary, NativeMemory]]:
    """Load a model; raises EngineFailed when it cannot be."""
    native.llama_log_set(_LOG, None)
    native.llama_backend_init()
    loading = native.llama_model_default_params()
    loading.n_gpu_layers = count_gpu_layers(native.llama_supports_gpu_offload(), gpu_layers)
    loaded = native.llama_model_load_from_file(os.fsencode(model), loading)
    if not loaded:
        raise EngineFailed(f"{model} cannot be loaded")
    try:
        params = native.llama_context_default_params()
        params.n_ctx = min(context_tokens, native.llama_model_n_ctx_train(loaded)) * slots
        params.n_seq_max = slots
        params.kv_unified = False  # each sequence has its own part, and is as fast as if alone
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        context = native.llama_init_from_model(loaded, params)
        if not context:
            raise EngineFailed(f"there is no memory for {slots} times {context_tokens} tokens")
        try:
            yield Vocabulary(native.llama_model_get_vocab(loaded)), NativeMemory(context)
        finally:
            native.llama_free(context)
    finally:
        native.llama_model_free(loaded)
