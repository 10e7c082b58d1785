"""Embedders: one file each, selected by the kind in the settings."""
