"""`troupe nodes|jobs|dead-letters|pause|resume`: look into an installation, and steer it."""
