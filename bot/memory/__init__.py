"""The memory of characters: stories, summaries, and what is known of people and places."""
