"""Generate an answer: filter its text, show it live, and split it into messages."""
