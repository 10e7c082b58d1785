"""The personas of ChatHaruhi characters and the character files that ship with Troupe."""
