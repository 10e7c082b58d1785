"""Stream an answer, show it live, filter its text and split it into messages."""
