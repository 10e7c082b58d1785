"""Chat platforms: one package or module for each."""
