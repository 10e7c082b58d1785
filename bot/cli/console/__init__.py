"""`troupe console`: log in to the console in a browser, and make tokens for its API."""

from bot.cli.typer_apps import LazyCommand, lazy_app

app = lazy_app(
    "Log in to the console in a browser.",
    {
        "url": LazyCommand("bot.cli.console.url", "Print a link that logs in once."),
        "revoke": LazyCommand("bot.cli.console.revoke", "End all sessions of the console."),
        "token": LazyCommand("bot.cli.console.token", "Add, list and revoke tokens for the API."),
    },
)
