"""All storage: SQL repositories, data shared in Redis or Valkey, vector indexes."""
