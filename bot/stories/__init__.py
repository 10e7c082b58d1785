"""Retrieve the stories of a character that fit the message."""
