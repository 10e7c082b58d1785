"""Read models' Markdown, and typeset what platforms lack: tables and maths."""
