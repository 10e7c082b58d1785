"""Update the message catalogs (`make catalogues`); new texts have no translation yet."""

from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from bot.texts.text import LANGUAGES
from tests.checkout import CHECKOUT

_KEYWORDS: dict[str, Any] = {
    "translatable": None,
    "translatable_count": (1, 2),
    "marked": None,
    "_": None,
    "_n": (1, 2),  # in the templates of pages
}
_METHODS = [("**.py", "python"), ("**/console/templates/**.html", "jinja2.ext.babel_extract")]
_OPTIONS = {"**/console/templates/**.html": {"trim_blocks": "true", "silent": "false"}}
_LOCALES = CHECKOUT / "bot" / "texts" / "locales"


def catalogue_file(language: str) -> Path:
    return _LOCALES / language / "LC_MESSAGES" / "troupe.po"


def extract_texts() -> Catalog:
    """Return all translatable texts in the code, without translations."""
    found = extract_from_dir(CHECKOUT / "bot", _METHODS, _OPTIONS, _KEYWORDS)
    catalogue = Catalog()
    for _file, _line, text, _comments, _context in sorted(found, key=lambda one: str(one[2])):
        catalogue.add(text)
    return catalogue


def read_catalogue(language: str) -> Catalog:
    with catalogue_file(language).open("rb") as file:
        return read_po(file, locale=language)


def main() -> None:
    texts = extract_texts()
    for language in LANGUAGES[1:]:
        catalogue = read_catalogue(language)
        catalogue.update(texts, no_fuzzy_matching=True, update_creation_date=False)
        catalogue.obsolete.clear()
        with catalogue_file(language).open("wb") as file:
            write_po(file, catalogue, width=100, sort_output=True, ignore_obsolete=True)
        with catalogue_file(language).with_suffix(".mo").open("wb") as file:
            write_mo(file, catalogue)


if __name__ == "__main__":
    main()
