"""Drafts tried out: on samples, on recorded conversations, on a text, by asking the model."""
