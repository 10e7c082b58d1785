"""Keys of providers that are kept in the database, encrypted with a key that is not in it."""
