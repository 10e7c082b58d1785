"""After a restore: nothing is sent twice, and what was forgotten stays forgotten."""
