"""Which history a message belongs to, and what of it is remembered."""
