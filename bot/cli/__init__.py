"""The command line: one Typer app a file, imported when its command runs."""
