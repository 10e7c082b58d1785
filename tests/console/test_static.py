"""Files for browsers come from the packages in package-lock.json."""

import gzip
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bot.console.pages import read_static_files
from tests.checkout import CHECKOUT
from tests.support.console import ConsoleUnderTest

_MAX_FIRST_LOAD_BYTES = 60 * 1024
_TEXT_EDITOR = "codemirror.min.js"
_MAX_TEXT_EDITOR_BYTES = 150 * 1024
_CHARTS = {"uplot.min.js", "uplot.min.css"}
"""Used on Home only: tests/console/browser measures the load of each page."""


def test_third_party_files_are_unchanged_and_licensed() -> None:
    files = read_static_files()
    lines = [line.split() for line in files["SHA256SUMS"].decode().splitlines()]
    sums = {name: digest for digest, name in lines}

    licenses = {f"{name}.LICENSE.txt" for name in ("codemirror", "uplot")}
    assert licenses | _CHARTS <= sums.keys()
    assert {name: hashlib.sha256(files[name]).hexdigest() for name in sums} == sums


@pytest.mark.service
@pytest.mark.skipif(shutil.which("npm") is None, reason="node is not installed")
def test_committed_files_equal_a_new_build(tmp_path: Path) -> None:
    script = CHECKOUT / "bot" / "console" / "assets" / "build.sh"
    built = subprocess.run([script, tmp_path], capture_output=True, text=True, timeout=300)
    if built.returncode != 0:
        pytest.skip(f"npm cannot install the packages here: {built.stderr[-300:]}")

    names = {file.name for file in tmp_path.iterdir()}
    assert {_TEXT_EDITOR, "SHA256SUMS", *_CHARTS} <= names
    assert {name: (tmp_path / name).read_bytes() for name in names} == {
        name: read_static_files()[name] for name in names
    }


def test_lock_file_has_versions_and_hashes_but_no_urls() -> None:
    text = (CHECKOUT / "bot" / "console" / "assets" / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]

    assert packages["node_modules/uplot"]["version"] == "1.6.32"
    assert packages["node_modules/uplot"]["integrity"].startswith("sha512-")
    assert packages["node_modules/codemirror"]["version"] == "6.0.2"
    assert "://" not in text


def test_files_of_the_first_page_load_are_small() -> None:
    files = read_static_files()
    loaded = [
        files[name]
        for name in files
        if name.endswith((".css", ".js")) and name not in {_TEXT_EDITOR, *_CHARTS}
    ]

    assert sum(len(gzip.compress(content)) for content in loaded) < _MAX_FIRST_LOAD_BYTES
    assert len(gzip.compress(files[_TEXT_EDITOR])) < _MAX_TEXT_EDITOR_BYTES


async def test_static_urls_contain_hashes_and_unknown_files_are_not_served(
    console: ConsoleUnderTest,
) -> None:
    page = await (await console.client.get("/login")).text()
    digest = hashlib.sha256(read_static_files()["console.css"]).hexdigest()[:8]

    assert f"/static/console.css?v={digest}" in page
    assert (await console.client.get(f"/static/console.css?v={digest}")).status == 200
    for path in ("/static/..%2fapp.py", "/static/nothing.js"):
        assert (await console.client.get(path)).status == 404
