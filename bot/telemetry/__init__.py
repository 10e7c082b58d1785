"""Logs and metrics: constant text, ids as fields, never a person's words."""
