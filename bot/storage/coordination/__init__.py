"""The coordinator: queues of ready keys in Redis or Valkey."""
