"""Render templates from users in a child process with limits."""
