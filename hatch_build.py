"""Compile the catalogs of texts whenever the package is built or installed for development."""

from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Write `troupe.mo`, which gettext reads, beside each `troupe.po`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for source in (Path(self.root) / "bot/texts/locales").glob("*/LC_MESSAGES/*.po"):
            with source.open("rb") as po, source.with_suffix(".mo").open("wb") as mo:
                write_mo(mo, read_po(po))
