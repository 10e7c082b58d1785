"""`troupe keys`: keep the keys of providers in the database, encrypted."""

from bot.cli.keys.commands import app

__all__ = ["app"]
