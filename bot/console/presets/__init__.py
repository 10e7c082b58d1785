"""Presets and characters: view, draft, publish, and roll back."""
