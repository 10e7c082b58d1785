"""What only the admins of a channel are told."""
