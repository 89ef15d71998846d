"""Run a whole decoder step in one call."""
