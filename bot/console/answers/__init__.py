"""The list of answers, and what one answer was made of."""
