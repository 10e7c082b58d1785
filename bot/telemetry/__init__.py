"""Logs and metrics: constant event names, ids as fields, never people's texts."""
