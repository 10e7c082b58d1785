"""Take messages from platforms: store them, then wake the workers of their conversations."""
