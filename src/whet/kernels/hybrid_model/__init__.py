"""Compute a step of a hybrid model in one call; whet.models.hybrid.native drives it."""
