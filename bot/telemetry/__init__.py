"""Logs, metrics and traces; they contain constant names and ids, but no text written by people."""
