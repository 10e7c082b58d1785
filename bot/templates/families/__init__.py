"""Chat templates of model families that Troupe ships."""
