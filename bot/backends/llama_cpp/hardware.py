"""Check what this machine computes models on: the features of its CPU, and its GPUs."""

import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from bot.errors import SettingsError
from bot.runtime.subprocesses import child_environment

_REQUIRED_CPU_FLAGS = frozenset({"avx2", "bmi2", "f16c", "fma"})  # xllamacpp is compiled for them
_ALL_LAYERS = 999  # more than any model has
_LIST_DEVICES_SECONDS = 30


def check_cpu(setting_prefix: str) -> None:
    """Refuse a CPU on which the prebuilt engine would die of an illegal instruction.

    Args:
        setting_prefix: what the names of the settings begin with that chose the engine.

    Raises:
        SettingsError: the CPU lacks a feature; the text names it and the remedy.
    """
    cpuinfo = Path("/proc/cpuinfo")  # where it is missing, such CPUs are all new enough
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return
    if missing := missing_cpu_flags(cpuinfo.read_text(encoding="utf-8", errors="replace")):
        raise SettingsError(
            f"this processor lacks {', '.join(missing)}, which the built-in engine needs; "
            f"set {setting_prefix}KIND=openai and {setting_prefix}BASE_URL to a server that has "
            "a model"
        )


def missing_cpu_flags(cpuinfo: str) -> list[str]:
    """Return the required flags that /proc/cpuinfo does not list; none if it lists no flags."""
    flags = [line.split() for line in cpuinfo.splitlines() if line.startswith("flags")]
    return sorted(_REQUIRED_CPU_FLAGS.difference(*flags)) if flags else []


def count_gpu_layers(gpu_count: int, setting: str) -> int:
    """Return how many layers of a model go to a GPU; `auto` is all of them, if there is a GPU."""
    if setting == "auto":
        return _ALL_LAYERS if gpu_count else 0
    return int(setting)


def list_devices() -> list[str]:
    """Describe the devices that the prebuilt engine finds; none where it does not run."""
    if find_spec("xllamacpp") is None:
        return []
    command = [sys.executable, "-m", "bot.backends.llama_cpp.engines.xllamacpp_devices"]
    try:
        listed = subprocess.run(  # noqa: S603 # a module of this package
            command,
            capture_output=True,
            text=True,
            timeout=_LIST_DEVICES_SECONDS,
            check=True,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        return [f"not known: the engine did not list them within {_LIST_DEVICES_SECONDS} s"]
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.splitlines()
