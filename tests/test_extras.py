"""Without the extras, all else works, and errors name the missing package and the remedy."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bot import extras
from bot.errors import SettingsError
from bot.extras import import_extra, install_command
from bot.prompting.text import tokens
from bot.prompting.text.tokens import EncodingCounter
from tests.checkout import CHECKOUT

PACKAGES = sorted(extras._EXTRAS)
DISTRIBUTIONS = {
    "PIL": "pillow",
    "greenlet": "sqlalchemy",
    "llama_cpp": "llama-cpp-python",
    "opentelemetry": "opentelemetry-sdk",
    "toktok": "toktok-rs",
}
WITHOUT = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({PACKAGES}))
sys.argv[0] = "troupe"
runpy.run_module("bot", run_name="__main__")
"""


def test_every_package_is_in_the_extra_that_errors_suggest() -> None:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    named = {
        extra: {Requirement(one).name.lower() for one in needed}
        for extra, needed in project["optional-dependencies"].items()
    }
    for package, extra in extras._EXTRAS.items():
        assert DISTRIBUTIONS.get(package, package.replace("_", "-")) in named[extra]
    assert {Requirement(one).name for one in project["dependencies"]}.isdisjoint(PACKAGES)


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("asyncpg", "bot.storage.postgres"),
        ("cryptography", "bot.storage.fernets"),
        ("mcp", "bot.tool_servers.mcp_server"),
        ("numpy", "bot.storage.stories"),
        ("redis", "bot.storage.redis_client"),
    ],
)
def test_missing_package_error_names_the_package_and_remedy(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str
) -> None:
    for name in list(sys.modules):
        if name == module or name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(SettingsError) as raised:
        import_extra(module, "This")

    assert str(raised.value) == f"This needs the package {package}: {install_command(package)}"


def test_module_outside_every_extra_is_a_programming_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_extra("bot.no_such_module", "This")


@pytest.mark.parametrize(
    "text",
    [
        "The keeper lights the lamp every evening and counts the ships. " * 20,
        "江南小镇的茶馆里，老板娘一边听故事，一边给客人添茶。" * 20,
        "def count(texts):\n    return [len(text) for text in texts]\n" * 20,
    ],
)
def test_token_estimate_is_close_to_the_exact_count(text: str) -> None:
    [counted] = EncodingCounter("cl100k_base")([text])
    [estimated] = EncodingCounter("cl100k_base", tokens._TokenEstimator)([text])

    assert 0.7 < estimated / counted < 1.8


@pytest.mark.slow
def test_minimal_installation_answers_messages(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, "run"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(CHECKOUT), "TROUPE_PROVIDERS__LOCAL__KIND": "echo"},
        input=b"hello there\n",
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert (result.returncode, result.stdout) == (0, b"hello there\n"), result.stderr.decode()
