"""Backends, which answer prompts; each package is a vendor, listed in registry.py."""
