"""Text features of character cards: macros and story strings."""
