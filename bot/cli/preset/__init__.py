"""`troupe preset`: list, show, check, import and export presets."""

from bot.cli.typer_apps import LazyCommand, lazy_app

app = lazy_app(
    "List, show, check, import and export presets.",
    {
        "list": LazyCommand("bot.cli.preset.list_presets", "List every preset and what it is for."),
        "show": LazyCommand(
            "bot.cli.preset.show_preset", "Print a preset as strict JSON, and its version."
        ),
        "validate": LazyCommand(
            "bot.cli.preset.validate_presets", "Check preset files by key and line."
        ),
        "import": LazyCommand(
            "bot.cli.preset.import_preset", "Add a preset from a file of another program."
        ),
        "export": LazyCommand(
            "bot.cli.preset.export_preset", "Write a preset as JSON or as a Modelfile."
        ),
    },
)
