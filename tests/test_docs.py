"""The README and the pages in docs/ agree with the code and with each other."""

import re
from pathlib import Path

import pytest

from bot.routing.command_specs import COMMANDS
from tests.checkout import CHECKOUT
from tests.settings_page import PAGE, settings_page
from tests.test_style import anchors

README = CHECKOUT / "README.md"
PAGES = [README, CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
_OWN_COMMAND = re.compile(r"python -m (?P<module>tests[\w.]*)(?P<options>(?: +[\w./-]+)*)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([\w-]+))?\)")


def test_settings_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == settings_page(), "run python -m tests.settings_page"


def test_readme_lists_every_command_and_no_other() -> None:
    table = README.read_text("utf-8").partition("## Commands in a chat")[2]
    rows = re.findall(r"^\| `/(\w+)", table, flags=re.MULTILINE)
    assert set(rows) == {spec.name for spec in COMMANDS}


def test_readme_lists_every_action_of_preset() -> None:
    [preset] = (spec for spec in COMMANDS if spec.name == "preset")
    rows = re.findall(r"^\| (`/preset .*?) \|", README.read_text("utf-8"), flags=re.MULTILINE)
    listed = re.findall(r"`(?:/preset )?(\w+)[^`]*`", " ".join(rows))
    assert sorted(listed) == sorted(action.name for action in preset.actions)


def test_every_test_of_the_behaviours_exists() -> None:
    page = (CHECKOUT / "docs/behaviours.md").read_text("utf-8")
    cited = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    rows = [line for line in page.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert [row for row in rows if "::test_" not in row] == []
    missing = [
        f"{file}::{name}"
        for file, name in cited
        if f"def {name}(" not in (CHECKOUT / file).read_text("utf-8")
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_existing_pages_and_sections(page: Path) -> None:
    broken = []
    for target, section in _LINK.findall(page.read_text("utf-8")):
        linked = (page.parent / target).resolve() if target else page
        if not linked.is_file() or (section and section not in anchors(linked)):
            broken.append(f"{target}#{section}")
    assert broken == []


def test_every_command_of_the_tests_exists_with_its_options() -> None:
    missing, found = [], 0
    for page in PAGES:
        for command in _OWN_COMMAND.finditer(page.read_text("utf-8")):
            found += 1
            module = CHECKOUT / command["module"].rstrip(".").replace(".", "/")
            files = [module.with_suffix(".py"), module / "__main__.py"]
            source = "".join(one.read_text("utf-8") for one in files if one.is_file())
            options = re.findall(r" (--[\w-]+)", command["options"])
            if not source or any(f'"{option}"' not in source for option in options):
                missing.append(f"{page.name}: {command[0]}")
    assert found > 10
    assert missing == []
