"""A whole decoder step in one call."""
