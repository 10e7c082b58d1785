"""What processes share: signals, values and rate limits in Redis or Valkey; leases of roles."""
