"""Compute a step of a selective state-space model in one call; whet.models.selective.native drives it."""
