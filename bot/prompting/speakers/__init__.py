"""Speaker labels and tags, the echo filter, and user personas."""
