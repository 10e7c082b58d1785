"""As far as another system can show it: nothing needs what Windows lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bot.errors import TemplateLimitExceeded
from bot.templates import render_pool
from bot.templates.render_pool import RenderProcessPool
from tests.checkout import CHECKOUT

pytestmark = pytest.mark.slow


def as_on_windows(folder: Path, *words: str, given: str = "") -> str:
    """Run a module in a process without what Windows lacks; return what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.windows", *words],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],  # noqa: TID251 # no setting of the service
            "PYTHONPATH": str(CHECKOUT),
            "TROUPE_CONSOLE__PORT": "0",
            "TROUPE_EMBEDDING__KIND": "words",
            "TROUPE_PROVIDERS__LOCAL__KIND": "echo",
        },
        input=given.encode(),
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    as_on_windows(tmp_path, "everything")


def test_check_command_runs_without_unix_modules(tmp_path: Path) -> None:
    assert "ok     provider local: an echo" in as_on_windows(tmp_path, "bot", "check")


def test_piped_line_is_answered(tmp_path: Path) -> None:
    assert as_on_windows(tmp_path, "bot", "run", given="hello there\n") == "hello there\n"


async def test_endless_template_is_stopped_without_a_cpu_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with RenderProcessPool(1) as pool:
        monkeypatch.setattr(render_pool, "HAS_CPU_LIMIT", False)
        monkeypatch.setattr(render_pool, "ANSWER_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(TemplateLimitExceeded, match="it used more than 0 s"):
            await pool.render("{% for _ in range(99999) %}{% endfor %}", [])
