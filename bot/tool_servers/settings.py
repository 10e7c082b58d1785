"""Settings of MCP servers, without importing the package that connects to them."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from bot.runtime.addresses import HttpAddress
from bot.runtime.secret_file import resolve_secret


def _split_command(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _parse_json(value)
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"cannot be read as a command line: {error}") from None


def _split_at_commas(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _parse_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('write JSON: {"NAME": "value"} or ["program", "argument"]') from None


class McpServerSettings(BaseModel):
    """Settings of an MCP server, which presets can use by its name, but cannot define."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[tuple[str, ...] | None, BeforeValidator(_split_command), NoDecode] = Field(
        None,
        min_length=1,
        description="The command that starts the server as a process, which communicates over its"
        " standard input and output.",
    )
    url: HttpAddress | None = Field(
        None, description="The address of a running server with streamable HTTP."
    )
    token: SecretStr | None = Field(
        None, description="With an address: the token to send as `Authorization: Bearer`."
    )
    token_file: Path | None = Field(
        None,
        description="A file that contains the token, such as a mounted secret. It is read each time"
        " Troupe connects.",
    )
    environment: Annotated[dict[str, SecretStr], BeforeValidator(_parse_json), NoDecode] = Field(
        {},
        description='With a command: environment variables of the process, as JSON {"NAME":'
        ' "value"}; besides these, it gets only PATH, HOME, and the like.',
    )
    tools: Annotated[tuple[str, ...], BeforeValidator(_split_at_commas), NoDecode] = Field(
        (),
        description="The names of the tools to offer, separated by commas; by default those that"
        " the server declares to be read-only.",
    )
    seconds: float = Field(10, gt=0, le=60, description="How many seconds a tool call may take.")

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either __COMMAND or __URL")
        self.token = resolve_secret(self.token, self.token_file, "token")
        if self.url is None and self.token is not None:
            raise ValueError("__TOKEN works only with __URL; for a process, use __ENVIRONMENT")
        return self
