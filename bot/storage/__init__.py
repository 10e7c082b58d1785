"""What Troupe stores: SQL repositories, the coordinator on Redis or Valkey, vector indexes."""
