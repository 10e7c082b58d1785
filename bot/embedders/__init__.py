"""Embedders: one module for each kind in the settings."""
