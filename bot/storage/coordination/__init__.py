"""The coordinator on Redis or Valkey."""
