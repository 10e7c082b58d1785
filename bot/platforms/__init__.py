"""The chat platforms; each package is one of them."""
