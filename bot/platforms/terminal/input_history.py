"""What was written at the prompt before, kept in a file that only its owner can read."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory
from typing_extensions import override


class InputHistory(FileHistory):
    """The lines of this and earlier chats; where the file cannot be written, those of this one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        super().__init__(str(file))

    @override
    def load_history_strings(self) -> Iterable[str]:
        with contextlib.suppress(OSError):
            return list(super().load_history_strings())
        return []

    @override
    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            super().store_string(string)

    def clear(self) -> None:
        """Forget everything that was written."""
        self._loaded_strings.clear()
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
