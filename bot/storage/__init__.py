"""What Troupe stores: SQL repositories, what processes share in Redis or Valkey, vector indexes."""
