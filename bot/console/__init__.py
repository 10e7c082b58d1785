"""What an operator looks at: health, readiness, metrics."""
