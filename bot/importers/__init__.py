"""Files that other programs made, turned into ours."""
