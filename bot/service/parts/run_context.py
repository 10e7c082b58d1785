"""What every part of a process is built from."""

from collections.abc import Callable, Sequence

from bot.frozen_dataclass import frozen_dataclass
from bot.platforms.spec import PlatformSpec
from bot.ports import Clock
from bot.service.models import Models
from bot.service.options import Role, RunOptions
from bot.service.resources import Resources, data_dir_use
from bot.settings import Settings
from bot.storage.data_dir import DataDirUse


@frozen_dataclass
class RunContext:
    """The settings and the open resources of one process, and what they say about it."""

    settings: Settings
    resources: Resources
    specs: Sequence[PlatformSpec]
    """The platforms that run."""
    progress: Callable[[str], None]
    """Tells the operator something."""
    options: RunOptions
    """What this run does differently."""
    clock: Clock
    owner: str
    """The name that this process holds leases under."""

    @property
    def models(self) -> Models:
        models = self.resources.models
        assert models is not None  # noqa: S101 -- only who needs them asks
        return models

    @property
    def is_alone(self) -> bool:
        """Whether no other process does the same: the data directory of SQLite is locked."""
        return self.resources.database.is_sqlite

    @property
    def is_in_terminal(self) -> bool:
        """Whether the only person here is the operator."""
        return data_dir_use(self.specs) is DataDirUse.TERMINAL

    @property
    def may_take_any_port(self) -> bool:
        """Whether this process starts although its port is in use, as others may share its machine.

        One that was started to serve people's pages has to be where they look for them.
        """
        serves_pages = self.options.shares_work and Role.CONSOLE in self.options.roles
        return not (self.is_alone or serves_pages)

    @property
    def has_console(self) -> bool:
        """Whether this process serves the pages of the console."""
        return self.settings.console.pages and Role.CONSOLE in self.options.roles

    def announce(self, text: str) -> None:
        """Tell the operator something, unless the terminal belongs to a chat."""
        if not any(spec.uses_terminal for spec in self.specs):
            self.progress(text)
