"""Values of the playground: channels in our own database, and what would be answered there."""
