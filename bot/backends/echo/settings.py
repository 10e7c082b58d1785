"""The settings of providers of the kind `echo`."""

from typing import Literal

from bot.backends.spec import BackendSpec, ProviderSettings


class EchoSettings(ProviderSettings):
    """A provider that repeats prompts has nothing more to set."""

    kind: Literal["echo"] = "echo"


SPEC = BackendSpec(kind="echo", settings=EchoSettings, factory="bot.backends.echo.backend:make")
