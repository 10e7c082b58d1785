"""The service's texts and their translations."""
