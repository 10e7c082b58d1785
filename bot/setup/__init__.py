"""Set-up: steps that check live what a person gives, and one write of `.env` at the end.

`troupe init` calls them from questions in the terminal; a page can call the same functions.
"""
