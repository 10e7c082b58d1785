"""The nouns that travel: frozen values, no I/O, known to everybody."""
