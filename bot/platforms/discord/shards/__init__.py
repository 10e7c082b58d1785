"""Discord's shards: which channels one has, its stored session, when it may IDENTIFY."""
