"""Jinja chat templates in a sandbox."""
