"""Texts encrypted at rest, as an option: column types, their codec, the keys."""
