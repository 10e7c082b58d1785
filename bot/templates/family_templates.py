"""Shipped templates of model families, and detection of known ones."""

import hashlib
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, Final

from bot.templates.jinja_template import JinjaTemplate
from bot.templates.registry import register

FAMILIES: Final[list[str]] = []
"""The names of the files in families/, without `.jinja`; each is also a name of its template."""

FAMILY_BY_SHA256: Final[dict[str, str]] = {}


def detect_family(source: str) -> str | None:
    """Return the name of the family with exactly this template; None if unknown."""
    return FAMILY_BY_SHA256.get(hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest())


def _read_template(file: Path, **values: Any) -> JinjaTemplate:
    return JinjaTemplate(file.read_text(encoding="utf-8"), **values)


def _register_all() -> None:
    catalog = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for family in catalog["family"]:
        bos_token, eos_token = family.get("bos", ""), family.get("eos", "")
        stop_words = tuple(family.get("stop", [eos_token] if eos_token else []))
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        name, *others = family["names"]
        file = Path(__file__).parent / "families" / f"{name}.jinja"
        register(name, *others)(partial(_read_template, file, **tokens, stop_words=stop_words))
        FAMILIES.append(name)
        FAMILY_BY_SHA256.update(dict.fromkeys(family.get("sha256", ()), name))


_register_all()
