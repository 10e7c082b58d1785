"""Run `troupe` and measure how late its event loop is, and how much CPU it uses without a pause.

    python -m tests.bench.roles.measured_loop FILE python -m bot run ...

A timer of 2 ms is set again and again, in place of that of `troupe_loop_lag_seconds`. Each second a
line of JSON is appended to the file: `at` in seconds of `time.monotonic`, `late` and `cpu` in
seconds for each timer. `late` is by the clock, so that it includes waiting for a core; `cpu` is
what the loop's thread used from when the timer was set until it ran.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import bot.cli.app
from bot.ports import Clock
from bot.service import container

TIMER_SECONDS = 0.002
_TIMERS_A_LINE = 500


def main() -> None:
    """Run the command, without the words before `run`."""
    file, *command = sys.argv[1:]
    path = Path(file)

    async def measure(_clock: Clock) -> None:
        while True:
            late, cpu = [], []
            for _ in range(_TIMERS_A_LINE):
                used, due_at = time.thread_time(), time.monotonic() + TIMER_SECONDS
                await asyncio.sleep(TIMER_SECONDS)
                late.append(max(0.0, time.monotonic() - due_at))
                cpu.append(time.thread_time() - used)
            line = json.dumps({"at": time.monotonic(), "late": late, "cpu": cpu})
            with path.open("a") as log:  # noqa: ASYNC230 # less than a millisecond
                log.write(line + "\n")

    container.measure_loop_lag = measure  # type: ignore[attr-defined, assignment] # on purpose
    sys.argv = ["troupe", *command[command.index("run") :]]
    bot.cli.app.main()


if __name__ == "__main__":
    main()
