"""Where models lie, and how they get there."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.backends import models
from bot.errors import SettingsError
from bot.settings import ProviderSettings

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
    settings = ProviderSettings.model_validate({"kind": "llama_cpp", **given})
    return models.find(word, settings, data_dir)


def test_default_is_the_model_that_comes_with_troupe(
    tmp_path: Path, put: Callable[[str], Path]
) -> None:
    path = put(f"models/{models.DEFAULT_FILE}")

    assert found("default", tmp_path) == path


def test_default_is_what_the_settings_say(tmp_path: Path, put: Callable[[str], Path]) -> None:
    by_path, by_name = put("elsewhere/mine.gguf"), put("models/qwen.gguf")

    assert found("default", tmp_path, model_path=by_path) == by_path
    assert found("default", tmp_path, model="qwen") == by_name


@pytest.mark.parametrize("word", ["qwen", "qwen.gguf"])
def test_name_is_a_file_in_the_data_directory(
    tmp_path: Path, put: Callable[[str], Path], word: str
) -> None:
    path = put("models/qwen.gguf")

    assert found(word, tmp_path) == path


def test_full_path_is_taken_as_it_is(tmp_path: Path, put: Callable[[str], Path]) -> None:
    path = put("elsewhere/mine.gguf")

    assert found(str(path), tmp_path) == path


@pytest.mark.parametrize("word", ["../secret", "a/b", ".."])
def test_name_does_not_lead_out_of_the_data_directory(tmp_path: Path, word: str) -> None:
    with pytest.raises(SettingsError):
        found(word, tmp_path)


def test_unknown_name_is_said_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"models/qwen.gguf; `troupe model list`"):
        found("qwen", tmp_path)


def test_imported_file_is_listed(tmp_path: Path, put: Callable[[str], Path]) -> None:
    models.import_file(put("elsewhere/mine.gguf"), tmp_path, hashlib.sha256(GGUF).hexdigest())

    (model,) = models.installed(tmp_path)
    assert (model.name, model.size_bytes) == ("mine", len(GGUF))


def test_import_with_another_hash_leaves_nothing(
    tmp_path: Path, put: Callable[[str], Path]
) -> None:
    with pytest.raises(SettingsError, match=r"mine.gguf is damaged or another file"):
        models.import_file(put("elsewhere/mine.gguf"), tmp_path, "00")

    assert list(models.folder(tmp_path).iterdir()) == []


def test_only_gguf_files_are_imported(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>")

    with pytest.raises(SettingsError, match="not a GGUF file"):
        models.import_file(tmp_path / "page.gguf", tmp_path)


def test_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        models.import_file(tmp_path / "nothing.gguf", tmp_path)


def test_no_models_is_an_empty_list(tmp_path: Path) -> None:
    assert models.installed(tmp_path) == []


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


async def test_fetched_model_with_a_wrong_hash_does_not_count(
    tmp_path: Path, installer: Callable[[str], None]
) -> None:
    installer("target.mkdir(); (target / 'half.gguf').write_text('GGUF half')")

    with pytest.raises(SettingsError, match="damaged or another file"):
        await models.pull_default(tmp_path, progress=lambda _: None)

    assert models.installed(tmp_path) == []


async def test_fetching_without_a_network_says_so_in_one_line(
    tmp_path: Path, installer: Callable[[str], None]
) -> None:
    installer("sys.exit('error: failed to fetch\\n  Caused by: no route to host')")

    with pytest.raises(SettingsError) as refused:
        await models.pull_default(tmp_path, progress=lambda _: None)

    assert "Caused by: no route to host" in str(refused.value)
    assert "`troupe model pull` again" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_package_without_a_model_is_said(
    tmp_path: Path, installer: Callable[[str], None]
) -> None:
    installer("target.mkdir()")

    with pytest.raises(SettingsError, match="no model in"):
        await models.pull_default(tmp_path, progress=lambda _: None)


async def test_model_that_is_there_is_not_fetched_again(
    tmp_path: Path, put: Callable[[str], Path]
) -> None:
    path = put(f"models/{models.DEFAULT_FILE}")
    told: list[str] = []

    assert await models.pull_default(tmp_path, told.append) == path
    assert told == []


async def test_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="Not a directory"):
        await models.pull_default(tmp_path / "file", progress=lambda _: None)
