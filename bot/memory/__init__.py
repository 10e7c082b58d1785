"""The memory of characters: stories, summaries, and facts about people and channels."""
