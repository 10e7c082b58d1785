"""Which process receives from a platform, or over which of its connections."""
