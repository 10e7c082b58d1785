"""What a place remembers: who answers there, who people are, which stories and summaries fit."""
