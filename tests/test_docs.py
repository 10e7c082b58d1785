"""The README and the pages in docs/ agree with the code and with each other."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bot.cli.app import app
from tests.checkout import CHECKOUT
from tests.docs_data import PAGE, READMES, readme, settings_page
from tests.test_style import anchors

PAGES = [
    *READMES.values(),
    CHECKOUT / "CONTRIBUTING.md",
    *sorted((CHECKOUT / "docs").rglob("*.md")),
]
_OWN_COMMAND = re.compile(r"python -m (?P<module>tests[\w.]*)(?P<options>(?: +[\w./-]+)*)")
_COMMAND = re.compile(
    r"(?:^ {4}(?:[A-Z_]+=\S+ )?|`|\| |-- |exec \w+ |-u troupe |\.venv/bin/)"
    r"troupe (?P<words>(?!kubectl|make|\.venv)[a-z][^`#|&<>\n]*)",
    re.MULTILINE,
)
_SETTING = re.compile(r"\bTROUPE_[A-Z][A-Z0-9_]*(?:<\w+>[A-Z0-9_]*)?")
_NO_SETTINGS = {"TROUPE_SEED", "TROUPE_SHARE", "TROUPE_TEST_SCREENSHOTS", "TROUPE_<KIND>__"}
"""Variables of the tests, and a pattern, which are not settings."""
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([\w-]+))?\)")


def test_settings_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == settings_page(), "run `make docs-data`"


@pytest.mark.parametrize("language", READMES)
def test_commands_in_the_readme_are_up_to_date(language: str) -> None:
    assert READMES[language].read_text("utf-8") == readme(language), "run `make docs-data`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_existing_pages_and_sections(page: Path) -> None:
    broken = []
    for target, section in _LINK.findall(page.read_text("utf-8")):
        linked = (page.parent / target).resolve() if target else page
        if not linked.is_file() or (section and section not in anchors(linked)):
            broken.append(f"{target}#{section}")
    assert broken == []


def test_every_setting_mentioned_in_the_docs_exists() -> None:
    known = [
        re.compile(re.sub(r"<\w+>", r"(<\\w+>|[A-Z0-9_]+?)", name))
        for name in re.findall(r"^\| `(TROUPE_\w[^`]*)`", settings_page(), flags=re.MULTILINE)
    ]
    files = [*PAGES, *(one for one in (CHECKOUT / "deploy").rglob("*") if one.is_file())]
    found = {name: file for file in files for name in _SETTING.findall(file.read_text("utf-8"))}
    missing = {
        name: file.name
        for name, file in found.items()
        if name not in _NO_SETTINGS
        and not any(one.fullmatch(name) for one in known)
        and not (name.endswith("__") and any(one.pattern.startswith(name) for one in known))
    }
    assert len(found) > 100
    assert missing == {}


def test_every_command_shown_in_the_docs_exists_with_its_options() -> None:
    found = {
        command["words"].strip()
        for page in [*PAGES, *(CHECKOUT / "deploy").rglob("*.md")]
        for command in _COMMAND.finditer(page.read_text("utf-8"))
    }
    assert len(found) > 50
    assert [words for words in sorted(found) if _unknown_word(words.split())] == []


def _unknown_word(words: Sequence[str]) -> str | None:
    """Return the first word that is neither a command of `troupe` nor one of its options."""
    command: Any = get_command(app)
    context = command.make_context("troupe", [], resilient_parsing=True)
    while words and hasattr(command, "resolve_command"):
        if words[0] not in command.commands:
            return words[0]
        _, command, words = command.resolve_command(context, list(words))
    options = {name for each in command.params for name in each.opts + each.secondary_opts}
    named = (word.partition("=")[0] for word in words if word.startswith("--"))
    return next((name for name in named if name not in options), None)


def test_every_command_used_in_tests_exists_with_its_options() -> None:
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
    assert found
    assert missing == []
