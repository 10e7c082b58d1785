"""Speaker labels: who said what, as the model reads it."""
