"""Set-up: steps that check live what a person gives, and one write of `.env` at the end.

`troupe init` calls them from questions in the terminal, the page of the set-up from forms.
"""
