"""Hear safely: store what was heard, then let the platform forget it."""
