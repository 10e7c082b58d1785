"""The pages in Debian's Chromium."""
