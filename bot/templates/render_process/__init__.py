"""Render templates from people in child processes with limits."""
