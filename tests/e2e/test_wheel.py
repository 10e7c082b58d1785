"""Test that the wheel, built from the sdist, runs without the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from bot import __version__
from bot.storage.database import NEWEST_REVISION
from tests.checkout import CHECKOUT
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist of the checkout, and a wheel from that sdist alone."""
    if find_spec("hatchling") is None and "CI" not in os.environ:  # noqa: TID251 # no setting
        pytest.skip("hatchling is not installed: `make test` installs it")
    folder = tmp_path_factory.mktemp("dist")
    build(CHECKOUT, "sdist", folder)
    [sdist] = folder.glob("troupe_bot-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build(folder / sdist.name.removesuffix(".tar.gz"), "wheel", folder)
    [wheel] = folder.glob("troupe_bot-*.whl")
    return wheel


def build(source: Path, target: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, timeout=240)


@pytest.fixture(scope="module")
def troupe(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment; return the path of its `troupe` command.

    A .pth file adds the dependencies of the running environment, so that nothing is downloaded.
    That does not add the editable install, because .pth files in an added folder are ignored.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=240)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=240)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    dependencies = folder / "lib" / version / "site-packages" / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "troupe"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working directory, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(troupe: Path, *words: str, given: str = "") -> str:
    """Run a command of the installed package without a checkout; return its output."""
    result = subprocess.run(
        [troupe, *words],
        env={
            "PATH": os.environ["PATH"],  # noqa: TID251 # no setting of the service
            "TROUPE_CONSOLE__PORT": "0",
            "TROUPE_PROVIDERS__LOCAL__KIND": "echo",
        },
        input=given.encode(),
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def test_installed_package_comes_from_the_wheel(troupe: Path, folder: Path) -> None:
    python = troupe.with_name("python")
    found = subprocess.run(
        [python, "-c", "import bot; print(bot.__file__)"],
        env={},
        capture_output=True,
        check=True,
        timeout=240,
    )

    assert Path(found.stdout.decode().strip()).is_relative_to(troupe.parent.parent)
    assert output(troupe, "--version") == f"troupe {__version__}\n"


def test_wheel_contains_the_files_of_the_console(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("bot/console/")}
    folder = CHECKOUT / "bot" / "console"
    shown = [*(folder / "static").rglob("*"), *(folder / "templates").rglob("*")]

    assert {str(one.relative_to(CHECKOUT)) for one in shown if one.is_file()} <= packed
    assert not any(name.startswith("bot/console/assets/") for name in packed)


def test_installed_package_lists_its_presets(troupe: Path, folder: Path) -> None:
    names = [line.partition(":")[0] for line in output(troupe, "preset", "list").splitlines()]

    assert names == ["assistant", "coder", "兰亭", "marlowe"]


def test_installed_package_upgrades_an_empty_database(troupe: Path, folder: Path) -> None:
    assert output(troupe, "db", "upgrade") == f"the database is at revision {NEWEST_REVISION}\n"
    assert output(troupe, "db", "current") == f"{NEWEST_REVISION}\n"


@pytest.mark.parametrize("command", ["chat", "run"])
def test_installed_package_answers_a_piped_line(troupe: Path, folder: Path, command: str) -> None:
    assert output(troupe, command, given="hello there\n") == "hello there\n"


def test_installed_package_renders_a_shipped_template(troupe: Path, folder: Path) -> None:
    (folder / "talk.json").write_text(json.dumps([{"role": "user", "content": "Hi"}]))

    rendered = output(troupe, "render", "--template", "chatml", "--messages", "talk.json")

    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_example_plugins_are_installed_and_run_by_name(troupe: Path, folder: Path) -> None:
    python = str(troupe.with_name("python"))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    examples = [
        str(one.parent) for one in (CHECKOUT / "docs" / "examples").glob("*/pyproject.toml")
    ]
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", *examples]
    subprocess.run([*pip, *install], check=True, timeout=240)
    names = sorted(Path(one).name.partition("_")[0] for one in examples)
    plugins = {
        "PATH": os.environ["PATH"],  # noqa: TID251 # no setting of the service
        "TROUPE_CONSOLE__PORT": "0",
        "TROUPE_PLUGINS": ",".join(names),
        "TROUPE_PROVIDERS__LOCAL__KIND": "eliza",
        "TROUPE_FILEDROP__FOLDER": "drop",
    }
    asked = folder / "drop" / "alice" / "1.txt"
    asked.parent.mkdir(parents=True)
    asked.write_text("I am tired.")

    with subprocess.Popen([troupe, "run"], env=plugins, stderr=subprocess.PIPE) as service:
        try:
            until = time.monotonic() + PATIENCE_SECONDS
            while not (answers := [one.read_text() for one in asked.parent.glob("*.md")]):
                assert service.poll() is None, service.stderr
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            service.terminate()
    assert answers == ["How long have you been tired?"]

    command = ["-m", "pytest", "-q", "-p", "bot.contracts", "--pyargs", "bot.contracts"]
    for name, chat, passed in (("eliza", "", 5), ("filedrop", "alice", 2)):
        given = ["--troupe-plugin", name, "--troupe-chat", chat, "-p", "no:cacheprovider"]
        tested = subprocess.run(
            [python, *command, *given], env=plugins, capture_output=True, timeout=240, check=False
        )
        assert f"{passed} passed, " in tested.stdout.decode(), tested.stdout.decode()
