"""The command line: each Typer app has a module, imported when its command runs."""
