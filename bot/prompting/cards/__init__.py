"""The card-specific text features: macros and story strings."""
