"""Text functions: token counts, confusable characters, whole words, JSON with comments."""
