"""Jinja chat templates in transformers' sandbox."""
