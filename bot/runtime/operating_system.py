"""Code that differs on Windows: file locks, process limits, signals, child processes.

The Windows branches have never run on Windows: they are only type-checked, and tested on Linux
without the modules that Windows lacks. This module imports little, because child processes with
small memory limits import it.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

if sys.platform == "win32":
    import ctypes
    import msvcrt
    import struct
else:
    import fcntl
    import resource

IS_WINDOWS: Final = sys.platform == "win32"
_LOCKED_BYTE = 2**30  # far behind the file's text, because on Windows a lock also blocks reading
_MEMORY_FLAG, _TIME_FLAG, _PROCESSES_FLAG, _EXTENDED_LIMITS_ID = 0x100, 0x2, 0x8, 9  # winnt.h
_NEW_PROCESS_GROUP = 0x200
HAS_CPU_LIMIT: Final = hasattr(signal, "setitimer")
"""Whether `limit_cpu` works; if not, the parent process limits each request's wall-clock time."""

HAS_UNIX_SOCKETS: Final = not IS_WINDOWS

OWN_SESSION_OPTIONS: Final[Mapping[str, Any]] = (
    {"creationflags": _NEW_PROCESS_GROUP} if IS_WINDOWS else {"start_new_session": True}
)
"""Arguments of a child process that shield it from Ctrl-C, so that its parent can stop it."""


def lock_file(file: TextIO, *, is_shared: bool) -> None:
    """Lock a file until it is closed; raises `OSError` if another process has locked it."""
    if sys.platform != "win32":
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    elif not is_shared:  # Windows' runtime has no shared locks
        os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


def belongs_to_user(file_status: os.stat_result) -> bool:
    """Return whether a file belongs to this user; always False on Windows."""
    return sys.platform != "win32" and file_status.st_uid == os.getuid()


def limit_process(memory_bytes: int, max_open_files: int, cpu_seconds: int | None = None) -> None:
    """Permanently limit this process's memory, CPU time, open files and child processes.

    Writing to files is forbidden as well. On Windows, a job object limits memory, CPU time and
    child processes, but not files.
    """
    if sys.platform == "win32":
        _limit_by_job_object(memory_bytes, cpu_seconds)
    else:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have ignored the signal
        values_by_limit = {
            resource.RLIMIT_AS: memory_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,
            resource.RLIMIT_NOFILE: max_open_files,
            resource.RLIMIT_NPROC: 0,
        }
        if cpu_seconds is not None:
            values_by_limit[resource.RLIMIT_CPU] = cpu_seconds
        for limit, value in values_by_limit.items():
            resource.setrlimit(limit, (value, value))


if sys.platform == "win32":

    def _limit_by_job_object(memory_bytes: int, cpu_seconds: int | None) -> None:
        kernel32, this_process = ctypes.windll.kernel32, ctypes.c_void_p(-1)
        kernel32.CreateJobObjectW.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel32.CreateJobObjectW(None, None))
        limit_flags = _MEMORY_FLAG | _PROCESSES_FLAG | (_TIME_FLAG if cpu_seconds else 0)
        # JOBOBJECT_EXTENDED_LIMIT_INFORMATION; its times are in units of 100 ns.
        basic_limits = (cpu_seconds or 0) * 10_000_000, 0, limit_flags, 0, 0, 1, 0, 0, 0
        limits = struct.pack("@qqINNINII6Q4N", *basic_limits, *[0] * 6, memory_bytes, 0, 0, 0)
        are_limits_set = kernel32.SetInformationJobObject(
            job, _EXTENDED_LIMITS_ID, limits, len(limits)
        )
        if not (are_limits_set and kernel32.AssignProcessToJobObject(job, this_process)):
            raise ctypes.WinError()


def limit_cpu(seconds: float) -> None:
    """Have the kernel kill this process after `seconds` more CPU time; 0 removes the limit."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def call_on_termination(loop: Any, stop: Callable[[], object]) -> None:
    """Call `stop` in the event loop on Ctrl-C or on a termination signal."""
    if sys.platform == "win32":
        for signal_number in (signal.SIGINT, signal.SIGBREAK):
            signal.signal(signal_number, lambda *_: loop.call_soon_threadsafe(stop))
    else:
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, stop)


def ignore_hang_up(loop: Any) -> None:
    """Keep this process running when its terminal is closed."""
    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGHUP, lambda: None)


def minimal_environment(packages_dir: Path) -> dict[str, str]:
    """Return minimal environment variables for a Python child that imports from `packages_dir`."""
    environ = os.environ  # noqa: TID251 -- no setting is read
    variables = {name: environ[name] for name in ("SYSTEMROOT",) if IS_WINDOWS and name in environ}
    return {"PYTHONPATH": str(packages_dir), **variables}
