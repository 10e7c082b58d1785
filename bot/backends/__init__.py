"""Backends, which answer prompts: one package is one vendor; registry.py lists them."""
