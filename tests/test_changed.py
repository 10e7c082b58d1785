"""`make fast` finds the tests of what changed."""

from tests.changed import find_tests


def test_module_belongs_to_the_test_folder_of_its_name() -> None:
    assert find_tests(["bot/cli/preset_files.py", "bot/cli/run.py"]) == ["tests/cli"]


def test_changed_test_is_run_alone_unless_its_folder_is_run() -> None:
    changed = "tests/cli/test_app.py"

    assert find_tests([changed]) == [changed]
    assert find_tests([changed, "bot/cli/run.py"]) == ["tests/cli"]


def test_top_level_module_belongs_to_the_test_of_its_name() -> None:
    assert find_tests(["bot/settings.py"]) == ["tests/test_settings.py"]


def test_other_files_have_no_tests() -> None:
    assert find_tests(["README.md", "bot/py.typed", "tests/cli/test_deleted.py"]) == ["tests/cli"]
    assert find_tests(["README.md", "bot/__init__.py"]) == []
