"""`make fast` finds the tests of the changed files."""

from tests.changed import find_tests


def test_changed_module_runs_the_test_folder_of_its_package() -> None:
    assert find_tests(["bot/cli/preset_files.py", "bot/cli/run.py"]) == ["tests/cli"]


def test_changed_test_file_runs_alone_unless_its_whole_folder_runs() -> None:
    changed = "tests/cli/test_app.py"

    assert find_tests([changed]) == [changed]
    assert find_tests([changed, "bot/cli/run.py"]) == ["tests/cli"]


def test_changed_top_level_module_runs_the_test_file_of_its_name() -> None:
    assert find_tests(["bot/settings.py"]) == ["tests/test_settings.py"]


def test_changed_files_without_tests_run_nothing() -> None:
    assert find_tests(["README.md", "bot/py.typed", "tests/cli/test_deleted.py"]) == ["tests/cli"]
    assert find_tests(["README.md", "bot/__init__.py"]) == []
