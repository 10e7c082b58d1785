"""Upgrade the tables, and tell which versions of Troupe may use them."""
