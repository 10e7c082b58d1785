"""Locating, downloading, and verifying model files."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files import hub
from bot.backends.model_files import store as model_store
from bot.errors import SettingsError
from tests.attacks import attacks, expanded

GGUF = b"GGUF and the rest"


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str], Path]:
    def put(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GGUF)
        return path

    return put


def find_model(word: str, data_dir: Path, **given: object) -> Path:
    settings = LlamaCppSettings.model_validate(given)
    return model_store.find_model(word, settings, data_dir)


@pytest.mark.parametrize(
    ("word", "given", "file"),
    [
        ("default", {}, f"models/{model_store.DEFAULT_MODEL_FILE}"),
        ("default", {"model_path": "elsewhere/mine.gguf"}, "elsewhere/mine.gguf"),
        ("default", {"model": "qwen"}, "models/qwen.gguf"),
        ("qwen", {}, "models/qwen.gguf"),
        ("qwen.gguf", {}, "models/qwen.gguf"),
        ("elsewhere/mine.gguf", {}, "elsewhere/mine.gguf"),  # a full path
        ("best", {}, "models/best.gguf"),  # a link within the folder
    ],
)
def test_model_name_refers_to_a_file(
    tmp_path: Path, put: Callable[[str], Path], word: str, given: dict[str, str], file: str
) -> None:
    for name in (model_store.DEFAULT_MODEL_FILE, "qwen.gguf"):
        put(f"models/{name}")
    put("elsewhere/mine.gguf")
    (tmp_path / "models" / "best.gguf").symlink_to(tmp_path / "models" / "qwen.gguf")
    if "model_path" in given:
        given = {"model_path": str(tmp_path / given["model_path"])}
    if "/" in word:
        word = str(tmp_path / word)

    assert find_model(word, tmp_path, **given) == tmp_path / file


@pytest.mark.parametrize("case", attacks("path_traversal"), ids=lambda case: case["id"])
def test_hostile_name_does_not_open_a_file(
    tmp_path: Path, put: Callable[[str], Path], case: dict[str, Any]
) -> None:
    word = expanded(case["input"])
    put("models/preset.gguf")
    (tmp_path / "models" / "symlink_to_root.gguf").symlink_to(put("secret"))

    with pytest.raises(SettingsError) as refused:
        find_model(word, tmp_path)

    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("case", attacks("path_traversal"), ids=lambda case: case["id"])
def test_hostile_source_does_not_import_a_file(tmp_path: Path, case: dict[str, Any]) -> None:
    word = expanded(case["input"])

    with pytest.raises(SettingsError):
        model_store.import_model(Path(word), tmp_path)

    assert model_store.list_models(tmp_path) == []
    assert hub.parse_model_source(word) is None


@pytest.mark.parametrize("name", ["a b", "-rf", ".hidden", "x..y", "NUL", "com1.q4", "n\0", "a/b"])
def test_file_with_an_unsafe_name_is_not_imported(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid name for a local model"):
        model_store.validate_model_name(f"{name}.gguf")


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-instruct-q4_k_m", "Meta-Llama-3.1_8B+x", "模型"])
def test_common_model_names_are_valid(name: str) -> None:
    assert model_store.validate_model_name(f"{name}.gguf") == name


def test_unknown_name_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"models/qwen.gguf; `troupe model list`"):
        find_model("qwen", tmp_path)


def test_imported_file_is_listed(tmp_path: Path, put: Callable[[str], Path]) -> None:
    model_store.import_model(put("elsewhere/mine.gguf"), tmp_path, hashlib.sha256(GGUF).hexdigest())

    (model,) = model_store.list_models(tmp_path)
    assert model.name == "mine.gguf"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("mine.gguf", GGUF, r"mine.gguf is damaged or not the expected file"),
        ("page.gguf", b"<html>", "not a GGUF file"),
        ("nothing.gguf", None, "No such file"),
    ],
)
def test_failed_import_leaves_nothing_behind(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=problem):
        model_store.import_model(tmp_path / name, tmp_path, "00")

    assert not list(model_store.models_folder(tmp_path).glob("*"))


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a fake `uv` on the PATH that runs the given Python code."""

    def installer(lines: str) -> None:
        uv = tmp_path / "bin" / "uv"
        uv.parent.mkdir()
        uv.write_text(
            f"#!{sys.executable}\n"
            "import sys; from pathlib import Path\n"
            "target = Path(sys.argv[sys.argv.index('--target') + 1])\n"
            f"{lines}\n"
        )
        uv.chmod(0o755)
        monkeypatch.setenv("PATH", str(uv.parent), prepend=":")

    return installer


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "target.mkdir(); (target / 'half.gguf').write_text('GGUF half')",
            "damaged or not the expected file",
        ),
        (
            "sys.exit('error: failed to fetch\\n  Caused by: no route to host')",
            "Caused by: no route to host.*`troupe model pull` again",
        ),
        ("target.mkdir()", "no model in"),
    ],
)
async def test_failed_download_is_reported_in_one_line(
    tmp_path: Path, installer: Callable[[str], None], lines: str, problem: str
) -> None:
    installer(lines)

    with pytest.raises(SettingsError, match=problem) as refused:
        await model_store.pull_default_model(tmp_path, report_progress=lambda _: None)

    assert "\n" not in str(refused.value)
    assert model_store.list_models(tmp_path) == []


async def test_model_is_not_downloaded_again(tmp_path: Path, put: Callable[[str], Path]) -> None:
    path = put(f"models/{model_store.DEFAULT_MODEL_FILE}")
    told: list[str] = []

    assert await model_store.pull_default_model(tmp_path, told.append) == path
    assert told == []


async def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="Not a directory"):
        await model_store.pull_default_model(tmp_path / "file", report_progress=lambda _: None)
