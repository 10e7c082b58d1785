"""Every defense of the service is needed: without it, some of its attacks succeed.

Defenses that are functions of a text are in tests/test_defences.py. Discord's mentions are in
tests/platforms/discord/test_surface.py; webhooks and streams are tested in their own folders.
Here a whole component is disabled, and the test of its attacks must then fail.
"""

import asyncio
import resource
import signal
import sys
from pathlib import Path

import pytest

from bot.commands.authority import AdminCheck
from bot.media import conversion_child
from bot.storage import sqlite as connections
from bot.storage.database import Database, open_database
from bot.storage.usage import Budgets
from bot.turn.limits.rate_limits import AnswerLimits
from tests.attacks import attacks, expanded
from tests.checkout import CHECKOUT
from tests.commands import test_authority as authority
from tests.commands.test_handlers import ADMIN, WHO_MAY_USE
from tests.media.file_samples import picture
from tests.turn import test_excessive_input as excessive
from tests.turn import test_personal_data as privacy
from tests.turn.setup import Setup

RENDER_WITHOUT_LIMITS = (
    "import sys; from bot.templates import JinjaTemplate;"
    " JinjaTemplate(sys.stdin.read()).render([{'role': 'user', 'content': 'Hi'}])"
)


def cases(category: str, scenario: excessive.Scenario) -> list[object]:
    """Return the inputs of a category that a scenario uses."""
    given = [case["input"] for case in attacks(category)]
    found = [one for one in given if excessive.find_scenario(one) is scenario]
    assert found
    return found


@pytest.mark.parametrize(
    ("owner", "method", "result", "scenario"),
    [
        (AnswerLimits, "admit", (True, None), excessive.flood_is_slowed_down),
        (AnswerLimits, "admit", (True, None), excessive.retry_button_is_limited),
        (Budgets, "reserve", None, excessive.budget_is_not_renewed_by_a_time_zone),
    ],
)
async def test_excessive_input_is_accepted_if_its_limit_is_removed(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    result: object,
    scenario: excessive.Scenario,
) -> None:
    async def limit_nothing(*_: object) -> object:
        return result

    monkeypatch.setattr(owner, method, limit_nothing)
    with pytest.raises(AssertionError):
        await scenario(database, cases("abuse_limits", scenario)[0])


@pytest.mark.parametrize("use", [use for use, who in WHO_MAY_USE.items() if who == ADMIN])
async def test_members_could_run_admin_commands_if_the_admin_check_were_removed(
    database: Database, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    async def require_nothing(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(AdminCheck, "require_admin", require_nothing)
    monkeypatch.setattr(AdminCheck, "require_prompt_access", require_nothing)
    with pytest.raises(AssertionError):
        await authority.test_command_is_refused_for_people_who_may_not_use_it(database, use)


async def test_deleted_words_would_stay_in_the_file_without_secure_delete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = [one for one in connections._PRAGMAS if "secure_delete" not in one]
    monkeypatch.setattr(connections, "_PRAGMAS", (*kept, "PRAGMA secure_delete=OFF"))
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as database:
        setup = Setup(database, [f"So your word is {privacy.CANARY}."])
        with pytest.raises(AssertionError):
            await privacy.forget_deletes_everything(setup, tmp_path)


def test_huge_pictures_would_be_decoded_without_the_pixel_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = picture(8000, 7000, mode="1")
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="8000 x 7000"):
        conversion_child.to_jpeg(bomb)
    monkeypatch.setattr(conversion_child, "_MAX_PIXELS", 10**9)
    assert conversion_child.to_jpeg(bomb)


@pytest.mark.slow
async def test_template_would_run_forever_without_the_renderers_limits() -> None:
    killed = 0
    for case in attacks("template_dos")[:4]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RENDER_WITHOUT_LIMITS),
            cwd=CHECKOUT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (2, 2))
        resource.prlimit(process.pid, resource.RLIMIT_AS, (2**30, 2**30))
        await process.communicate(expanded(case["input"]).encode())
        killed += process.returncode in {-signal.SIGKILL, -signal.SIGXCPU}
    assert killed, "some of them take 2 s of CPU time, and would take more"
