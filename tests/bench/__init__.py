"""What a message costs, measured on the service as processes."""
