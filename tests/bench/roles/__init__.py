"""Benches of an installation whose roles are processes of their own, on PostgreSQL and Valkey."""
