"""Backends, which answer prompts: one package per vendor, listed in registry.py."""
