"""Text helpers without state: token counts, confusable letters, words, JSON with comments."""
