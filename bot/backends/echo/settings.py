"""The settings of providers of the kind `echo`."""

from typing import Literal

from typing_extensions import override

from bot.backends.spec import FREE, BackendSpec, ModelPrice, ProviderSettings


class EchoSettings(ProviderSettings):
    """A provider that repeats prompts has nothing more to set."""

    kind: Literal["echo"] = "echo"

    @override
    def price_of(self, model: str) -> ModelPrice | None:
        return super().price_of(model) or FREE


SPEC = BackendSpec(kind="echo", settings=EchoSettings, factory="bot.backends.echo.backend:make")
