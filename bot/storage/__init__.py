"""Storage: tables and queries in SQL, and data shared in Redis or Valkey."""
