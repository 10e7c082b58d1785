"""Test that kills at any time neither lose, repeat, nor reorder messages.

There are two installations: one process with SQLite, and three processes with PostgreSQL, a Valkey
that is also killed, frozen, and wiped, and clocks that are up to 30 s wrong. Only the visible
messages are checked. The same check must detect the faults in faulty builds, here and in
test_forced_races.py. TROUPE_SEED=... repeats a run.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.postgres import create_postgres_database
from tests.support.chats import Platforms
from tests.support.crash_points import CRASH_POINTS
from tests.support.kill_load import LoadPlan, add_conversations, run_under_kills
from tests.support.shapes import (
    Installer,
    Shape,
    answering_model,
    assert_all_answered,
    crowded_platforms,
    report,
    write_tester,
)

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="session")]


platforms, model = crowded_platforms, answering_model


@pytest_asyncio.fixture(loop_scope="session")
async def shape(request: pytest.FixtureRequest, installer: Installer) -> AsyncIterator[Shape]:
    """Return one process on SQLite, or three on PostgreSQL and Valkey (two with Telegram)."""
    url = None
    if request.param == "distributed":
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    async with installer.shape(url) as installed:
        yield installed


EDITED_AND_PRESSED = {
    "questions_a_second": 20,
    "kills": 1,
    "points": ("after_http",),
    "edits": 0.3,
    "presses": 0.3,
}

DISTRIBUTED: dict[str, Any] = {"reach_seconds": 8, "max_passes": 3, "clock_seconds": 30}

embedded = pytest.mark.parametrize("shape", ["embedded"], indirect=True)
distributed = pytest.mark.parametrize("shape", ["distributed"], indirect=True)
both_shapes = pytest.mark.parametrize("shape", ["embedded", "distributed"], indirect=True)


@embedded
@pytest.mark.timeout(1200)
async def test_kills_neither_lose_nor_repeat_messages(
    shape: Shape, platforms: Platforms, seed: int
) -> None:
    plan = LoadPlan(seed, 100, 3, kills=12, pause_seconds=(1, 5), max_unanswered=20)
    outcome = report(await run_under_kills(shape.services, platforms, plan))
    assert_all_answered(outcome, platforms)


@embedded
@pytest.mark.timeout(1200)
async def test_edits_and_presses_survive_kills(
    shape: Shape, platforms: Platforms, seed: int
) -> None:
    write_tester(shape.services[0], role_name="Nora")  # on Discord, webhooks speak
    plan = LoadPlan(
        *(seed, 80, 3), kills=8, pause_seconds=(1, 5), edits=0.25, presses=0.6, max_unanswered=20
    )
    outcome = report(await run_under_kills(shape.services, platforms, plan))
    assert_all_answered(outcome, platforms)
    assert outcome.changed["edit"] > 10
    assert outcome.changed.total() > 30
    shown = [
        one
        for channel in platforms.discord.b.messages
        for one in platforms.discord.messages(channel)
    ]
    assert {one["author"]["username"] for one in shown if "webhook_id" in one} == {"Nora"}


@distributed
@pytest.mark.timeout(1200)
async def test_kills_of_three_processes_lose_nothing(
    shape: Shape, platforms: Platforms, seed: int
) -> None:
    plan = LoadPlan(
        seed,
        questions=100,
        questions_a_second=2,
        kills=18,
        max_unanswered=20,
        give_up_seconds=90,
        **DISTRIBUTED,
    )
    outcome = report(await run_under_kills(shape.services, platforms, plan, shape.disturb))
    assert_all_answered(outcome, platforms)


@pytest.mark.soak
@both_shapes
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("changes", [0.0, 0.5], ids=["plain", "edits-presses-faces"])
async def test_nothing_is_lost_or_repeated_after_300_kills(
    shape: Shape, platforms: Platforms, seed: int, changes: float
) -> None:
    plan = LoadPlan(
        seed,
        questions=900,
        questions_a_second=1,
        kills=300,
        dropped_responses=0.1,  # questions that are gathered share a send
        give_up_seconds=120,
    )
    if changes:
        plan = replace(plan, edits=changes / 2, presses=changes)
        for service in shape.services:
            write_tester(service, role_name="Nora")
    if shape.disturb is not None:
        plan = replace(plan, **DISTRIBUTED)
    outcome = report(await run_under_kills(shape.services, platforms, plan, shape.disturb))
    assert_all_answered(outcome, platforms)
    assert set(CRASH_POINTS) - {"never", "before_again"} <= set(outcome.kills_by_point)
    assert outcome.dropped_responses > 50


@pytest.mark.soak
@both_shapes
@pytest.mark.timeout(14_400)
async def test_nothing_is_lost_or_repeated_after_1000_kills_and_20000_messages(
    shape: Shape, platforms: Platforms, seed: int
) -> None:
    for _ in range(3):
        add_conversations(platforms)
    plan = LoadPlan(
        seed,
        questions=17_600,  # some are followed by another one
        questions_a_second=8,
        kills=1000,
        give_up_seconds=120,
        build="never_set_aside",
    )
    if shape.disturb is not None:
        plan = replace(plan, **DISTRIBUTED)
    outcome = report(await run_under_kills(shape.services, platforms, plan, shape.disturb))
    assert_all_answered(outcome, platforms)
    assert outcome.questions >= 20_000
    assert set(CRASH_POINTS) - {"never", "before_again"} <= set(outcome.kills_by_point)


@pytest.mark.soak
@both_shapes
@pytest.mark.timeout(3600)
async def test_all_questions_are_answered_despite_rare_kills(
    shape: Shape, platforms: Platforms, seed: int
) -> None:
    """Also print the latency of answers that were unfinished during a kill."""
    uptime = (20.0 * len(shape.services), 30.0 * len(shape.services))
    plan = LoadPlan(
        seed,
        questions=1000,
        questions_a_second=3,
        kills=24,
        dropped_responses=0.0,
        points=("random",),
        uptime_seconds=uptime,
        give_up_seconds=120,
    )
    assert_all_answered(report(await run_under_kills(shape.services, platforms, plan)), platforms)


@embedded
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("build", "found", "plan"),
    [
        pytest.param(
            "blind_resend",
            {"repeated": ["discord:", "telegram:"]},
            {"kills": 4, "dropped_responses": 0.3, "points": ("after_http", "random")},
            marks=pytest.mark.soak,
        ),
        (
            "acknowledge_first",
            {"lost": [""]},
            {"questions": 90, "kills": 10, "points": ("after_received",)},
        ),
        pytest.param(
            "answer_edits_anew",
            {"repeated": ["one was edited"]},
            EDITED_AND_PRESSED,
            marks=pytest.mark.soak,
        ),
        ("ignore_changes", {"ignored": ["has become", "is still there"]}, EDITED_AND_PRESSED),
        pytest.param(
            "skip_edited",
            {"skipped": [""]},
            {**EDITED_AND_PRESSED, "questions": 150},
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "forget_gathered", {"repeated": ["2 times"]}, EDITED_AND_PRESSED, marks=pytest.mark.soak
        ),
    ],
)
async def test_fault_of_each_faulty_build_is_detected(
    shape: Shape,
    platforms: Platforms,
    seed: int,
    build: str,
    found: dict[str, list[str]],
    plan: dict[str, Any],
) -> None:
    if build == "blind_resend":  # webhooks have no nonce that would hide a repeated message
        write_tester(shape.services[0], role_name="Nora")
    load = LoadPlan(
        seed,
        **{"questions": 60, "questions_a_second": 8, "build": build, **plan},
        give_up_seconds=30 if "repeated" in found else 6,
        repeated=tuple(found.get("repeated", ())),
    )
    outcome = report(await run_under_kills(shape.services, platforms, load))
    for kind, words in found.items():
        faults = getattr(outcome.result, kind)
        assert all(any(word in one for one in faults) for word in words), kind
