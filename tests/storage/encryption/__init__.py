"""Texts that are encrypted in the database."""
