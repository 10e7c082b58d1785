"""Logs and metrics: constant event names, ids as fields, never a person's words."""
