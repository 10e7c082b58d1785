"""What a local model computes on: the processor, or a graphics one that its engine is built for."""

import subprocess
import sys
from importlib.util import find_spec

_ALL_LAYERS = 999  # more than any model has
_LOOK_SECONDS = 30


def layers_on(gpus: int, wanted: str) -> int:
    """How many layers of a model go to a graphics processor; `auto`: all, if there is one."""
    if wanted == "auto":
        return _ALL_LAYERS if gpus else 0
    return int(wanted)


def seen() -> list[str]:
    """The devices that the prebuilt engine sees, in words; none where it does not run."""
    if find_spec("xllamacpp") is None:
        return []
    looking = [sys.executable, "-m", "bot.backends.llama_cpp.engines.xllamacpp_devices"]
    try:
        found = subprocess.run(  # noqa: S603 # our own child
            looking, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.splitlines()
