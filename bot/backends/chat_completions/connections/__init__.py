"""Connections to a provider: kept open, one pool for each key."""
