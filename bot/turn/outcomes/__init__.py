"""What a processed message leads to: an answer, the result of a command, or a notice."""
