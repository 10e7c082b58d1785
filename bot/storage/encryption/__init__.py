"""Message texts encrypted at rest, as an option: column types, their codec, the data keys."""
