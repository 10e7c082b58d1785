"""Parse models' Markdown, and render tables and math that platforms cannot show."""
