"""Requests to Discord's REST API without discord.py: its sending path costs more than a request."""
