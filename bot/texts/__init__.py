"""The texts of the service, and their translations."""
