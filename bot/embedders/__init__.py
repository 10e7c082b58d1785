"""Embedding models: one file an embedder, chosen by name in the registry."""
