"""Vector search over stories: numpy or pgvector."""
