"""Write what the code knows into the docs: `make docs-data`.

That is docs/settings.md, and the table of commands in README.md.
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
from bot.tool_servers.settings import McpServerSettings
from tests.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "settings.md"
README = CHECKOUT / "README.md"
_COMMANDS_BEGIN = "| command | what it does |\n"
_HEAD = """# Settings

This page is generated from the code by `make docs-data`; do not edit it.

Settings are read from `troupe.toml`, then from `.env`, then from the environment; the later one
wins. A variable that is set to nothing counts as not set. In `troupe.toml` the names are in lower
case, without `TROUPE_`, and groups are tables:

    data_dir = "/srv/troupe"

    [discord]
    token = "MTA..."

    [providers.openai]
    api_key = "sk-..."

`troupe check` tests all of it and reports names that are no settings.
"""
_PROVIDERS = """
## Providers

`<ID>` is the `provider` that presets name, in capitals: `TROUPE_PROVIDERS__OPENAI__API_KEY` is for
`"provider": "openai"`. `KIND` follows from the id for providers that Troupe knows, is `llama_cpp`
for `local` and `openai` for any other id. A provider `local` with a `BASE_URL` is of the kind
`openai`.
"""
_MCP_SERVERS = """
## MCP servers

`<NAME>` is what presets write in `mcp_servers`, in capitals: `TROUPE_MCP_SERVERS__FILES__COMMAND`
is for `"mcp_servers": ["files"]`. See [presets](presets.md#mcp-servers).
"""
_BY_NAME = ("providers", "mcp_servers")


def settings_page() -> str:
    """Return the page: the plain settings, then a table for each group."""
    fields = settings_model().model_fields
    groups = {name: model for name, each in fields.items() if (model := _group(each))}
    plain = {name: each for name, each in fields.items() if name not in {*groups, *_BY_NAME}}
    sections = [_HEAD, _table("TROUPE_", plain)]
    for name, model in groups.items():
        title = f"\n## {name.capitalize()}\n\n{_sentence(fields[name])}\n"
        sections += [title, _table(f"TROUPE_{name.upper()}__", model.model_fields)]
    sections += [
        _MCP_SERVERS,
        _table("TROUPE_MCP_SERVERS__<NAME>__", McpServerSettings.model_fields),
    ]
    sections.append(_PROVIDERS)
    for spec in backend_specs():
        sections.append(f"\n### {spec.kind}\n\n{_first_line(spec.settings)}\n")
        sections.append(_table("TROUPE_PROVIDERS__<ID>__", spec.settings.model_fields))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(sections))


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    rows = [f"| `{prefix}{name.upper()}` | {_default(each)} | {_text(each)} |"
            for name, each in fields.items()]  # fmt: skip
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""])


def _group(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is None or value == frozenset() or isinstance(value, SecretStr):
        return ""
    return f"`{value.as_posix() if isinstance(value, Path) else value}`"


def _text(field: FieldInfo) -> str:
    choices = list(_choices(field.annotation))
    text = _sentence(field) or "The kind of backend."
    if len(choices) > 1:
        text += f" One of {', '.join(f'`{one}`' for one in choices)}."
    return text.strip().replace("|", "\\|")


def _choices(kind: object) -> Iterator[object]:
    """Yield the values that a type allows, if these are listed; a number may be another choice."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
        return
    for part in get_args(kind):
        if part is not NoneType:
            yield from ("a number",) if part is int else _choices(part)


def _sentence(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def readme() -> str:
    """Return README.md with a table of today's commands."""
    before, _, rest = README.read_text("utf-8").partition(_COMMANDS_BEGIN)
    after = rest.partition("\n\n")[2]
    rows = [row for spec in COMMANDS for row in _command_rows(spec)]
    return "\n".join([before + _COMMANDS_BEGIN + "|---|---|", *rows, "", after])


def _command_rows(spec: CommandSpec, group: str = "") -> Iterator[str]:
    if spec.actions:
        for action in spec.actions:
            yield from _command_rows(action, f"{spec.name} ")
        return
    words = " ".join([f"/{group}{spec.name}", *map(_usage, spec.options)])
    yield f"| `{words}` | {spec.summary} |".replace("\\|", "|")


def _usage(option: CommandOption) -> str:
    """Write an option as people type it: `NAME`, `on/off`, in brackets if it may be left out."""
    word = "/".join(option.choices) or option.name.upper()
    return word if option.required else f"[{word}]"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), "utf-8")
    README.write_text(readme(), "utf-8")
