"""Chat platforms, one package each."""
