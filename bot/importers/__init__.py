"""Import presets and characters from the files of other programs."""
