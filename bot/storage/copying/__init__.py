"""Copies of a whole database: into another one, and into a file while the service runs."""
