"""Model files on disk: locate, download, verify, and read their GGUF metadata."""
