"""`.env` is changed atomically, and its other contents are kept."""

import stat
from pathlib import Path

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import SettingsError
from bot.setup import read_variable_names, write_variables

VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl"]))


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        (
            "# one\nA=1\nexport B = 2 # two\n\nC=3",
            {"B": "x", "D": "y"},
            "# one\nA=1\nB=x\n\nC=3\nD=y\n",
        ),
        ("A=1\nB=2\na=3\n", {"A": "4"}, "A=4\nB=2\n"),
        ("A=1\nB=2\nb=3\n", {"A": None, "B": None, "C": None}, ""),
    ],
    ids=["changed and added", "other case", "removed"],
)
def test_variables_are_changed_in_place_and_other_lines_are_kept(
    tmp_path: Path, before: str, changes: dict[str, str | None], after: str
) -> None:
    (tmp_path / ".env").write_text(before, "utf-8")
    write_variables(tmp_path / ".env", changes)
    assert (tmp_path / ".env").read_text("utf-8") == after
    assert [file.name for file in tmp_path.iterdir()] == [".env"]


@given(value=VALUES)
def test_any_value_is_read_back_by_dotenv(
    value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("env") / ".env"
    write_variables(file, {"A": value, "B": "2"})
    assert dotenv_values(file, interpolate=False) == {"A": value, "B": "2"}


def test_value_with_a_line_break_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="A contains a line break"):
        write_variables(tmp_path / ".env", {"A": "x\ny"})
    assert list(tmp_path.iterdir()) == []


def test_file_is_readable_only_by_its_owner_and_symlinks_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "real.env"
    real.write_text("A=1\n", "utf-8")
    real.chmod(0o644)
    link = tmp_path / ".env"
    link.symlink_to(real)
    write_variables(link, {"B": "2"})
    assert link.is_symlink()
    assert real.read_text("utf-8") == "A=1\nB=2\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere/\.env cannot be written: No such file"):
        write_variables(tmp_path / "nowhere" / ".env", {"A": "1"})


def test_names_are_read_in_upper_case(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# A=1\nexport b=2\nC=\n", "utf-8")
    assert read_variable_names(tmp_path / ".env") == {"B", "C"}
    assert list(read_variable_names(tmp_path / "none")) == []
