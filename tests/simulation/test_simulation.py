"""Test that the simulation finds no fault in the product, and each fault in faulty builds."""

import os
import re
import subprocess
import sys

import pytest

from tests.checkout import CHECKOUT

_SAID_TWICE = "repeated|leftovers"
_BROKEN = {
    "blind_resend": _SAID_TWICE,
    "no_fence": _SAID_TWICE,
    "acknowledge_first": "lost",
    "clients_clocks": _SAID_TWICE,
    "leave_duplicates": _SAID_TWICE,
}
"""The faults that each faulty build causes."""

_SLOWLY_FOUND = [one for one in _BROKEN if one != "blind_resend"]
"""Faults that tests/e2e/test_kill.py also finds."""


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation with command line options."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # noqa: TID251 # a child's own
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "build", "happened"),
    [("1", "right", "deaths"), ("13", "accepts_late", "sends accepted late")],
)
def test_nothing_is_lost_or_repeated(seed: str, build: str, happened: str) -> None:
    run = simulate("--seed", seed, "--steps", "12000", "--build", build, "--verbose")
    assert run.returncode == 0, run.stdout + run.stderr
    [times] = re.findall(rf"(\d+) {happened}", run.stdout.splitlines()[0])
    assert int(times) > 3


@pytest.mark.slow
def test_same_seed_produces_the_same_run() -> None:
    first, second = (simulate("--seed", "5", "--steps", "1000", "--verbose") for _ in range(2))
    digests = [re.findall(r"digest \w+", run.stdout) for run in (first, second)]
    assert len(digests[0]) == 1
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "build",
    ["blind_resend", *(pytest.param(one, marks=pytest.mark.soak) for one in _SLOWLY_FOUND)],
)
def test_missing_safeguard_is_detected_and_the_seed_printed(build: str) -> None:
    run = simulate("--seed", "1", "--steps", "400000", "--build", build, "--until-found")
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(rf"questions: .*\b[1-9]\d* ({_BROKEN[build]})\b", run.stdout), run.stdout
    assert re.search(rf"^FAULT: .* --seed \d+ .* --build {build}$", run.stdout, re.MULTILINE)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_is_lost_repeated_or_out_of_order_in_a_million_steps() -> None:
    run = simulate("--seed", "1000", "--steps", "1000000", "--jobs", "2")
    print(run.stdout)  # noqa: T201 # pytest shows it with -rP
    assert run.returncode == 0, run.stdout + run.stderr
