"""Generate parts of the docs from the code: `make docs-data`.

These are docs/settings.md, and the tables of commands in README.md and README.zh.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from bot.backends.registry import backend_specs
from bot.chat.command import CommandOption, CommandSpec
from bot.commands.handlers import COMMANDS
from bot.settings import settings_model
from bot.texts.text import to_translatable
from bot.tool_servers.settings import McpServerSettings
from tests.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "settings.md"
READMES = {"en": CHECKOUT / "README.md", "zh": CHECKOUT / "README.zh.md"}
_TABLE_HEADS = {"en": "| command | what it does |\n", "zh": "| 命令 | 作用 |\n"}
_TEMPLATE = CHECKOUT / "tests" / "settings.template.md"
_PROVIDER = "TROUPE_PROVIDERS__<ID>__"
_BY_NAME = ("providers", "mcp_servers")


def settings_page() -> str:
    """Return docs/settings.md: the top-level settings, then a table for each group."""
    fields = settings_model().model_fields
    groups = {name: model for name, each in fields.items() if (model := _group(each))}
    plain = {name: each for name, each in fields.items() if name not in {*groups, *_BY_NAME}}
    tables = [
        f"\n## {name.capitalize()}\n\n{_sentence(fields[name])}\n\n"
        + _table(f"TROUPE_{name.upper()}__", model.model_fields)
        for name, model in groups.items()
    ]
    sections = {
        "{plain}": _table("TROUPE_", plain),
        "{groups}": "\n".join(tables),
        "{mcp_servers}": _table("TROUPE_MCP_SERVERS__<NAME>__", McpServerSettings.model_fields),
        "{providers}": "\n".join(_provider_tables()),
    }
    page = _TEMPLATE.read_text("utf-8")
    for place, text in sections.items():
        page = page.replace(place, text)
    return re.sub(r"\n{3,}", "\n\n", page)


def _provider_tables() -> Iterator[str]:
    """Yield a table for each set of provider kinds with the same settings."""
    specs = backend_specs()
    every_kind = [spec.kind for spec in specs]
    names = ", ".join(f"`{kind}`" for kind in every_kind)
    kind_row = f"| `{_PROVIDER}KIND` |  | The kind of backend. One of {names}. |"
    kinds_of = {kind_row: every_kind}
    for spec in specs:
        fields = {name: one for name, one in spec.settings.model_fields.items() if name != "kind"}
        for row in _rows(_PROVIDER, fields):
            kinds_of.setdefault(row, []).append(spec.kind)
    groups = dict.fromkeys(map(tuple, kinds_of.values()))
    for group in sorted(groups, key=len, reverse=True):
        title = "Every kind" if list(group) == every_kind else " and ".join(group)
        rows = [row for row, kinds in kinds_of.items() if tuple(kinds) == group]
        yield f"\n### {title}\n\n{_table_of(rows)}"


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    return _table_of(_rows(prefix, fields))


def _rows(prefix: str, fields: dict[str, FieldInfo]) -> list[str]:
    return [
        f"| `{prefix}{name.upper()}` | {_default(each)} | {_text(each)} |"
        for name, each in fields.items()
    ]


def _table_of(rows: list[str]) -> str:
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""])


def _group(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    value = field.default
    if value in (None, frozenset(), (), {}) or isinstance(value, SecretStr):
        return ""
    return f"`{value.as_posix() if isinstance(value, Path) else value}`"


def _text(field: FieldInfo) -> str:
    choices = list(_choices(field.annotation))
    text = _sentence(field)
    if len(choices) > 1:
        text += f" One of {', '.join(f'`{one}`' for one in choices)}."
    return text.strip().replace("|", "\\|")


def _choices(kind: object) -> Iterator[object]:
    """Yield the values that a type lists; `a number` stands for any number."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
        return
    for part in get_args(kind):
        if part is not NoneType:
            yield from ("a number",) if part is int else _choices(part)


def _sentence(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def readme(language: str) -> str:
    head = _TABLE_HEADS[language]
    before, _, rest = READMES[language].read_text("utf-8").partition(head)
    after = rest.partition("\n\n")[2]
    rows = [row for spec in COMMANDS for row in _command_rows(spec, language)]
    return "\n".join([before + head + "|---|---|", *rows, "", after])


def _command_rows(spec: CommandSpec, language: str, group: str = "") -> Iterator[str]:
    if spec.actions:
        for action in spec.actions:
            yield from _command_rows(action, language, f"{spec.name} ")
        return
    words = " ".join([f"/{group}{spec.name}", *map(_usage, spec.options)])
    summary = to_translatable(spec.summary).translate_to(language)
    yield f"| `{words}` | {summary} |".replace("\\|", "|")


def _usage(option: CommandOption) -> str:
    """Format an option as people type it: `NAME` or `on/off`, in brackets if optional."""
    word = "/".join(option.choices) or option.name.upper()
    return word if option.required else f"[{word}]"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), "utf-8")
    for language, file in READMES.items():
        file.write_text(readme(language), "utf-8")
