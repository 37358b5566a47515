"""What befalls a run, and what becomes of it."""
