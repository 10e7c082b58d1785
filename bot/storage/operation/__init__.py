"""What operators see and do: processes, work, pauses, what was set aside."""
