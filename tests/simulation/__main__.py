"""Run simulated worlds for a number of steps; print the seed of each fault."""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import structlog

from tests.simulation.builds import BUILDS
from tests.simulation.world import World, WorldResult

_STEPS_OF_A_WORLD = 20_000


def run_world(asked: tuple[int, int, str]) -> WorldResult:
    """Run one world in a separate process, because killed parts are never cleaned up."""
    return World(*asked).run()


def run_worlds(seed: int, steps: int, build: str, jobs: int) -> Iterator[WorldResult]:
    """Yield the results of worlds with consecutive seeds, until there were enough steps."""
    count = -(-steps // _STEPS_OF_A_WORLD)
    size = min(steps, _STEPS_OF_A_WORLD)
    asked = [(one, size, build) for one in range(seed, seed + count)]
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(run_world, asked)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--steps", type=int, default=_STEPS_OF_A_WORLD, help="at least, in all")
    parser.add_argument("--build", choices=BUILDS, default="right")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at once")
    parser.add_argument("--until-found", action="store_true", help="stop at the first fault")
    parser.add_argument("--verbose", action="store_true", help="print every world")
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began, totals, faulty = time.monotonic(), Counter[str](), []
    for result in run_worlds(given.seed, given.steps, given.build, given.jobs):
        totals.update(result.counts)
        totals.update(worlds=1, steps=result.steps, questions=result.questions)
        if given.verbose or not result.check.is_clean:
            print(result)  # noqa: T201
        if not result.check.is_clean:
            faulty.append(result.seed)
            if given.until_found:
                break
    figures = ", ".join(f"{count} {what}" for what, count in totals.items())
    print(f"build {given.build}: {figures}; {time.monotonic() - began:.0f} s")  # noqa: T201
    for seed in faulty:
        print(  # noqa: T201
            f"FAULT: python -m tests.simulation --seed {seed} --steps"
            f" {min(given.steps, _STEPS_OF_A_WORLD)} --build {given.build}"
        )
    return 1 if faulty else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # noqa: TID251 # sets have one order then
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        repeatable = {**os.environ, "PYTHONHASHSEED": "0"}  # noqa: TID251
        os.execve(command[0], command, repeatable)  # noqa: S606 # no shell is needed
    sys.exit(main(sys.argv[1:]))
