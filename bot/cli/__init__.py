"""The command line: one Typer app a file."""
