"""The program needs nothing that Windows lacks, as far as another system can test that."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.errors import TemplateLimitExceeded
from bot.templates import render_pool
from bot.templates.render_pool import RenderProcessPool
from tests.checkout import CHECKOUT

pytestmark = pytest.mark.slow


@dataclass
class Windows:
    """A process that imitates Windows, and forks to run modules in an empty folder."""

    process: subprocess.Popen[str]
    folder: Path

    def run(self, *words: str, given: str = "") -> str:
        """Run a module; return its output."""
        files = {name: self.folder / name for name in ("output", "errors")}
        work = self.folder / "work"
        work.mkdir()
        request = {
            "words": words,
            "given": given,
            "folder": str(work),
            "files": {name: str(file) for name, file in files.items()},
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "0\n", files["errors"].read_text()
        return files["output"].read_text()


@pytest.fixture(scope="module")
def windows_process() -> Iterator[subprocess.Popen[str]]:
    """Yield one process for all tests, because importing the libraries takes seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.windows"],
        env={
            "PATH": os.environ["PATH"],  # noqa: TID251 # no setting of the service
            "PYTHONPATH": str(CHECKOUT),
            "TROUPE_CONSOLE__PORT": "0",
            "TROUPE_EMBEDDING__KIND": "words",
            "TROUPE_PROVIDERS__LOCAL__KIND": "echo",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


@pytest.fixture
def windows(windows_process: subprocess.Popen[str], tmp_path: Path) -> Windows:
    return Windows(windows_process, tmp_path)


def test_every_module_can_be_imported(windows: Windows) -> None:
    windows.run("everything")


def test_check_command_runs_without_unix_modules(windows: Windows) -> None:
    assert "ok     provider local: repeats prompts without a model" in windows.run("bot", "check")


def test_chat_answers_a_piped_line(windows: Windows) -> None:
    assert windows.run("bot", "run", given="hello there\n") == "hello there\n"


async def test_endless_template_is_stopped_without_a_cpu_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with RenderProcessPool(1) as pool:
        monkeypatch.setattr(render_pool, "HAS_CPU_LIMIT", False)
        monkeypatch.setattr(render_pool, "ANSWER_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(TemplateLimitExceeded, match="it used more than 0 s"):
            await pool.render("{% for _ in range(99999) %}{% endfor %}", [])
