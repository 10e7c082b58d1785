"""Read the Markdown that models write, and set what platforms have no form for: tables, maths."""
