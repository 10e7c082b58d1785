"""`.env` is changed in one step, and what it held before is kept."""

import stat
from pathlib import Path

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import SettingsError
from bot.setup.env_file import change_variables, read_names, write_variables

VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl"]))


def test_changed_variable_keeps_its_place_and_comments_stay() -> None:
    text = "# one\nA=1\nexport B = 2 # two\n\nC=3\n"
    assert change_variables(text, {"B": "x", "D": "y"}) == "# one\nA=1\nB=x\n\nC=3\nD=y\n"


def test_last_of_several_lines_counts_and_the_others_go() -> None:
    assert change_variables("A=1\nB=2\na=3\n", {"A": "4"}) == "B=2\nA=4\n"


def test_none_removes_a_variable() -> None:
    assert change_variables("A=1\nB=2\n", {"A": None, "C": None}) == "B=2\n"


@given(value=VALUES)
def test_any_value_is_read_back_by_dotenv(
    value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("env") / ".env"
    write_variables(file, {"A": value, "B": "2"})
    assert dotenv_values(file, interpolate=False) == {"A": value, "B": "2"}


def test_value_with_a_line_break_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="A has a line break"):
        write_variables(tmp_path / ".env", {"A": "x\ny"})
    assert list(tmp_path.iterdir()) == []


def test_file_becomes_readable_by_its_owner_only_and_a_link_stays_one(tmp_path: Path) -> None:
    real = tmp_path / "real.env"
    real.write_text("A=1\n", "utf-8")
    real.chmod(0o644)
    link = tmp_path / ".env"
    link.symlink_to(real)
    write_variables(link, {"B": "2"})
    assert link.is_symlink()
    assert real.read_text("utf-8") == "A=1\nB=2\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere/\.env cannot be written: No such file"):
        write_variables(tmp_path / "nowhere" / ".env", {"A": "1"})


def test_names_are_read_in_capitals(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# A=1\nexport b=2\nC=\n", "utf-8")
    assert read_names(tmp_path / ".env") == {"B", "C"}
    assert list(read_names(tmp_path / "none")) == []
