"""`troupe bench`: measure speed on this machine."""

from bot.cli.typer_apps import LazyCommand, lazy_app

app = lazy_app(
    "Measure speed on this machine.",
    {
        "messages": LazyCommand(
            "bot.cli.bench.messages",
            "Measure the CPU of a message in units of a fixed piece of work.",
        ),
        "slots": LazyCommand(
            "bot.cli.bench.slots", "Compare KV slot reuse with llama.cpp's own server."
        ),
    },
)
